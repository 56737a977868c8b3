#include "not_there.h"
#include <also/not/there.h>
#include "../outside.h"
#include 

__global__ void k(float* out) { out[0] = 1; }
#define NOTHING
#include NOTHING
