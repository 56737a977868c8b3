"""Functions that CUDA has for device code, whatever overloads of them a source has for the host."""

from __future__ import annotations

_MATHEMATICS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh",
    "cospi", "cyl_bessel_i0", "cyl_bessel_i1", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp", "exp10",
    "exp2", "expm1", "fabs", "fdim", "fdivide", "floor", "fma", "fmax", "fmin", "fmod", "frexp", "hypot", "ilogb",
    "isfinite", "isinf", "isnan", "j0", "j1", "jn", "ldexp", "lgamma", "llrint", "llround", "log", "log10",
    "log1p", "log2", "logb", "lrint", "lround", "max", "min", "modf", "nan", "nearbyint", "nextafter", "norm",
    "norm3d", "norm4d", "normcdf", "normcdfinv", "pow", "rcbrt", "remainder", "remquo", "rhypot", "rint", "rnorm",
    "rnorm3d", "rnorm4d", "round", "rsqrt", "scalbln", "scalbn", "signbit", "sin", "sincos", "sincospi", "sinh",
    "sinpi", "sqrt", "tan", "tanh", "tgamma", "trunc", "y0", "y1", "yn",
)  # fmt: skip

DEVICE_FUNCTIONS = frozenset([*_MATHEMATICS, *(f"{name}f" for name in _MATHEMATICS)])
