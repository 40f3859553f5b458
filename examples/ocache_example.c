/* libocache in one page: store, read, read a part, list, delete.
 *
 *     cc ocache_example.c $(pkg-config --cflags --libs ocache) -o ocache_example
 *     ./ocache_example localhost:9000
 */
#include <stdio.h>
#include <string.h>

#include "ocache.h"

static int fail(const char *what, const struct ocache_error *err) {
    fprintf(stderr, "%s: %s (%s)\n", what, err->message, ocache_strerror(err->code));
    return 1;
}

static int print_entry(void *user, const struct ocache_entry *entry) {
    (void)user;
    printf("  %s\n", entry->key);
    return 0; /* anything else stops the list */
}

static int use(struct ocache_client *client) {
    static const char key[] = "example/greeting";
    static const char text[] = "Hello, cache";
    struct ocache_options minute;
    struct ocache_list_query query;
    struct ocache_error err;
    void *value;
    size_t len;

    memset(&minute, 0, sizeof minute); /* zero is the default everywhere */
    minute.ttl_s = 60;
    if (ocache_put(client, key, strlen(key), text, strlen(text), &minute, &err) != 0) {
        return fail("put", &err);
    }
    if (ocache_get(client, key, strlen(key), NULL, &value, &len, &err) != 0) {
        return fail("get", &err);
    }
    printf("get: %s (%lu bytes)\n", (const char *)value, (unsigned long)len);
    ocache_free(value);
    if (ocache_get_range(client, key, strlen(key), 7, 11, NULL, &value, &len, &err) != 0) {
        return fail("get_range", &err);
    }
    printf("bytes 7 to 11: %s\n", (const char *)value);
    ocache_free(value);

    printf("keys:\n");
    memset(&query, 0, sizeof query);
    query.prefix = "example/";
    query.prefix_len = strlen("example/");
    if (ocache_list_all(client, &query, print_entry, NULL, NULL, &err) != 0) {
        return fail("list", &err);
    }
    if (ocache_delete(client, key, strlen(key), NULL, &err) != 0) {
        return fail("delete", &err);
    }
    if (ocache_get(client, key, strlen(key), NULL, &value, &len, &err) == OCACHE_NOT_FOUND) {
        printf("gone: %s\n", err.message);
    }
    return 0;
}

int main(int argc, char **argv) {
    struct ocache_config config;
    struct ocache_client *client;
    struct ocache_error err;
    const char *addrs[1];

    if (argc != 2) {
        fprintf(stderr, "usage: %s host:port\n", argv[0]);
        return 2;
    }
    addrs[0] = argv[1];
    ocache_config_init(&config);
    config.addrs = addrs;
    config.addr_count = 1;
    if (ocache_client_new(&config, &client, &err) != 0) {
        return fail("cannot make a client", &err);
    }
    int rv = use(client);
    ocache_client_free(client);
    return rv;
}
