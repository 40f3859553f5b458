/* The public header and the example must be C++ as well as C. */
#include "ocache_example.c"
