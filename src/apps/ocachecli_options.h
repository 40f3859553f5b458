/* ocachecli's options, one table; see base/opt.h for the columns. */
#ifndef OC_APPS_OCACHECLI_OPTIONS_H
#define OC_APPS_OCACHECLI_OPTIONS_H

#include "base/opt.h"

#define CLI_OPTIONS(X)                                                                             \
    X(LIST, addr, "addr", "localhost:9000",                                                        \
      "addresses of the nodes, comma separated; in simple mode a key belongs to one of them by "   \
      "its hash, so give them in the same order always")                                           \
    X(ENUM, mode, "mode", "auto", "how keys are routed", .words = "auto|simple|cluster")           \
    X(DURATION, topology_refresh_ns, "topology-refresh", "30s",                                    \
      "how often cluster mode asks for the topology")                                              \
    X(DURATION, timeout_ns, "timeout", "0", "deadline of each operation; 0: the library's bounds") \
    X(INT64, ttl_s, "ttl", "0", "seconds to live; 0: the server's default", .commands = "put")     \
    X(INT64, start, "start", "0", "first byte wanted, counted from 0", .commands = "get",          \
      .max = INT64_MAX)                                                                            \
    X(INT64, end, "end", "0", "last byte wanted; 0: to the end of the value", .commands = "get",   \
      .max = INT64_MAX)                                                                            \
    X(STRING, output, "output", "",                                                                \
      "write to this file instead of standard output; a failed get "                               \
      "leaves it as it was",                                                                       \
      .commands = "get", .letter = 'o')                                                            \
    X(STRING, prefix, "prefix", "", "only keys that begin with this", .commands = "list")          \
    X(UINT64, limit, "limit", "0", "stop after so many keys; 0: all", .commands = "list")          \
    X(BOOL, json, "json", "false", "print JSON", .commands = "list cluster bench")                 \
    X(INT64, connection_pool_size, "connection-pool-size", "4", "connections per address",         \
      .commands = "bench", .min = 1, .max = 64)                                                    \
    X(INT64, num_keys, "num-keys", "1000", "keys to preload and to choose from",                   \
      .commands = "bench", .min = 1, .max = 100000000)                                             \
    X(SIZE, value_size, "value-size", "100", "bytes per value", .commands = "bench",               \
      .max = 1 << 30)                                                                              \
    X(INT64, num_ops, "num-ops", "10000", "operations to run", .commands = "bench", .min = 1,      \
      .max = INT64_MAX)                                                                            \
    X(DURATION, duration_ns, "duration", "0", "run so long instead of a number of operations",     \
      .commands = "bench")                                                                         \
    X(INT64, concurrency, "concurrency", "8", "operations in flight", .commands = "bench",         \
      .min = 1, .max = 65536)                                                                      \
    X(STRING, workload, "workload", "A",                                                           \
      "A (50 % read, 50 % update), B (95/5), C (reads only) or weights as in read=70,update=30",   \
      .commands = "bench")                                                                         \
    X(ENUM, distribution, "distribution", "uniform", "how keys are chosen",                        \
      .words = "uniform|zipfian", .commands = "bench")                                             \
    X(UINT64, seed, "seed", "0", "of the choice of keys and operations; 0: a random one",          \
      .commands = "bench")                                                                         \
    X(BOOL, no_progress, "no-progress", "false", "do not show progress", .commands = "bench")      \
    X(BOOL, force_streaming, "force-streaming", "false", "stream every value, also short ones",    \
      .commands = "bench")

struct cli_options {
    CLI_OPTIONS(OC_OPT_FIELD)
};

#endif
