// Stands in for the system's header: an assertion that fails in a kernel must end the launch, not the process.
// No include guard: <assert.h> may be included again and must define the macro again.
#undef assert
#ifdef NDEBUG
#define assert(...) ((void)0)
#else
extern "C" [[noreturn]] void llmc2py_assertion_failed(const char *expression, const char *file, int line);
#define assert(...) (static_cast<bool>(__VA_ARGS__) ? (void)0 : llmc2py_assertion_failed(#__VA_ARGS__, __FILE__, __LINE__))
#endif
