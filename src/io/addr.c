/* Addresses as text and as the kernel wants them. */
#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/tcp_impl.h"

static int split_fail(struct oc_error *err, const char *addr, const char *why) {
    return oc_error_set(err, OC_E_INVALID, "'%.200s' is not an address: %s", addr, why);
}

static bool parse_port(const char *text, uint16_t *ret) {
    unsigned value = 0;
    size_t len = strlen(text);

    if (len == 0 || len > 5) {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (unsigned)(*text - '0');
    }
    if (value > UINT16_MAX) {
        return false;
    }
    *ret = (uint16_t)value;
    return true;
}

int oc_addr_split(const char *addr, char *host, size_t host_len, uint16_t *ret_port,
                  struct oc_error *err) {
    const char *start = addr;
    const char *colon;
    size_t len;
    uint16_t port;

    if (addr[0] == '[') {
        const char *close = strchr(addr, ']');

        if (close == NULL) {
            return split_fail(err, addr, "']' is missing (write [::1]:9000)");
        }
        start = addr + 1;
        len = (size_t)(close - start);
        colon = close + 1;
        if (len == 0) {
            return split_fail(err, addr, "nothing between the brackets (write [::1]:9000)");
        }
    } else {
        colon = strchr(addr, ':');
        if (colon != NULL && strchr(colon + 1, ':') != NULL) {
            return split_fail(err, addr, "an IPv6 address needs brackets (write [::1]:9000)");
        }
        len = colon != NULL ? (size_t)(colon - addr) : 0;
    }
    if (colon == NULL || *colon != ':') {
        return split_fail(err, addr, "the port is missing (write HOST:PORT)");
    }
    if (!parse_port(colon + 1, &port)) {
        return split_fail(err, addr, "the port is not a number from 0 to 65535");
    }
    if (len >= host_len) {
        return split_fail(err, addr, "the host name is too long");
    }
    memcpy(host, start, len);
    host[len] = '\0';
    *ret_port = port;
    return 0;
}

socklen_t oc_sockaddr_len(const union oc_sockaddr *addr) {
    return addr->any.sa_family == AF_INET ? sizeof addr->v4 : sizeof addr->v6;
}

void oc_sockaddr_set_port(union oc_sockaddr *addr, uint16_t port) {
    if (addr->any.sa_family == AF_INET) {
        addr->v4.sin_port = htons(port);
    } else {
        addr->v6.sin6_port = htons(port);
    }
}

bool oc_sockaddr_parse(const char *host, uint16_t port, union oc_sockaddr *ret) {
    union oc_sockaddr addr;
    char ip[INET6_ADDRSTRLEN];
    const char *scope = strchr(host, '%');
    size_t len = scope != NULL ? (size_t)(scope - host) : strlen(host);

    if (len >= sizeof ip) {
        return false;
    }
    memcpy(ip, host, len);
    ip[len] = '\0';
    memset(&addr, 0, sizeof addr);
    if (scope == NULL && inet_pton(AF_INET, ip, &addr.v4.sin_addr) == 1) {
        addr.any.sa_family = AF_INET;
    } else if (inet_pton(AF_INET6, ip, &addr.v6.sin6_addr) == 1) {
        addr.any.sa_family = AF_INET6;
        if (scope != NULL) {
            addr.v6.sin6_scope_id = if_nametoindex(scope + 1);
            if (addr.v6.sin6_scope_id == 0) {
                return false; /* the resolver knows how to say why */
            }
        }
    } else {
        return false;
    }
    oc_sockaddr_set_port(&addr, port);
    *ret = addr;
    return true;
}

bool oc_sockaddr_take(const struct sockaddr *from, uint16_t port, union oc_sockaddr *ret) {
    memset(ret, 0, sizeof *ret);
    if (from->sa_family == AF_INET) {
        memcpy(&ret->v4, from, sizeof ret->v4);
    } else if (from->sa_family == AF_INET6) {
        memcpy(&ret->v6, from, sizeof ret->v6);
    } else {
        return false;
    }
    oc_sockaddr_set_port(ret, port);
    return true;
}

void oc_sockaddr_print(const union oc_sockaddr *addr, char *dst, size_t len_bytes) {
    char ip[INET6_ADDRSTRLEN] = "?";
    int n;

    if (addr->any.sa_family == AF_INET) {
        (void)inet_ntop(AF_INET, &addr->v4.sin_addr, ip, sizeof ip); /* "?" stays on failure */
        n = snprintf(dst, len_bytes, "%s:%u", ip, ntohs(addr->v4.sin_port));
    } else if (addr->any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&addr->v6.sin6_addr)) {
        (void)inet_ntop(AF_INET, &addr->v6.sin6_addr.s6_addr[12], ip, sizeof ip); /* as above */
        n = snprintf(dst, len_bytes, "%s:%u", ip, ntohs(addr->v6.sin6_port));
    } else if (addr->any.sa_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &addr->v6.sin6_addr, ip, sizeof ip); /* as above */
        n = snprintf(dst, len_bytes, "[%s]:%u", ip, ntohs(addr->v6.sin6_port));
    } else {
        n = snprintf(dst, len_bytes, "?");
    }
    (void)n; /* a cut address is still something to read */
}
