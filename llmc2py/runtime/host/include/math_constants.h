#pragma once
#include "cuda_host.h"
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_PI_F 3.141592654f
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_INF (static_cast<double>(INFINITY))
#define CUDART_NAN (static_cast<double>(NAN))
