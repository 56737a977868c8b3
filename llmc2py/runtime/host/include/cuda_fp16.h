#pragma once
#include "cuda_host.h"
