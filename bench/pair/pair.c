/* The raw ceilings of bulk transfer: bytes from one socket to another, and from a socket to a file,
 * with nothing in between. Two processes over loopback TCP.
 *
 *   pair socket BYTES        sender writes 256 KiB pieces from memory, receiver reads and forgets
 * them pair file BYTES PATH     the receiver writes them to PATH by pwrite, as the store does
 *
 * The memory that is sent is 64 MiB, cycled, so that it is not all in a cache. Prints one JSON
 * line. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIECE     262144u
#define POOL      (64u << 20)
#define FILE_WRAP (1u << 30) /* the file is rewritten from its start after this many bytes */

static double now_s(void) {
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static double cpu_s(void) {
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_utime.tv_sec + (double)u.ru_utime.tv_usec * 1e-6 +
           (double)u.ru_stime.tv_sec + (double)u.ru_stime.tv_usec * 1e-6;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void send_all(uint16_t port, uint64_t total, size_t pool_bytes) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    uint8_t *pool =
        mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (pool == MAP_FAILED || connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        die("connect");
    }
    memset(pool, 'p', POOL);
    for (uint64_t sent = 0; sent < total;) {
        uint64_t at = sent % pool_bytes;
        size_t want = PIECE - at % PIECE;
        ssize_t n = send(fd, pool + at, want < total - sent ? want : total - sent, MSG_NOSIGNAL);

        if (n <= 0) {
            die("send");
        }
        sent += (uint64_t)n;
    }
    (void)close(fd);
    exit(0);
}

/* Fill one piece from the socket; short only at the end of the stream. */
static size_t receive_piece(int fd, uint8_t *buf) {
    size_t have = 0;

    while (have < PIECE) {
        ssize_t n = recv(fd, buf + have, PIECE - have, 0);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            die("recv");
        }
        if (n == 0) {
            break;
        }
        have += (size_t)n;
    }
    return have;
}

int main(int argc, char **argv) {
    int to_file = argc == 4 && strcmp(argv[1], "file") == 0;
    int hot = argc == 3 && strcmp(argv[1], "hot") == 0;
    uint64_t total = argc >= 3 ? strtoull(argv[2], NULL, 10) : 0;
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int out = -1;
    static uint8_t buf[PIECE];

    if (total == 0 || (!to_file && !hot && (argc != 3 || strcmp(argv[1], "socket") != 0))) {
        fprintf(stderr, "usage: pair socket BYTES | pair hot BYTES | pair file BYTES PATH\n");
        return 2;
    }
    if (to_file && (out = open(argv[3], O_CREAT | O_RDWR | O_TRUNC, 0600)) < 0) {
        die(argv[3]);
    }
    if (bind(listener, (struct sockaddr *)&sa, sizeof sa) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&sa, &len) != 0) {
        die("listen");
    }
    pid_t child = fork();
    if (child == 0) {
        send_all(ntohs(sa.sin_port), total, hot ? PIECE : POOL);
    }
    int fd = accept(listener, NULL, NULL);
    double begin = now_s(), cpu = cpu_s();
    uint64_t got = 0;
    size_t n;
    while ((n = receive_piece(fd, buf)) > 0) {
        if (to_file && pwrite(out, buf, n, (off_t)(got % FILE_WRAP)) != (ssize_t)n) {
            die("pwrite");
        }
        got += n;
    }
    double wall = now_s() - begin;
    cpu = cpu_s() - cpu;
    int status = 0;
    (void)waitpid(child, &status, 0);
    if (to_file) {
        (void)unlink(argv[3]);
    }
    printf("{\"bytes\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.4f, \"receiver_cpu_s\": %.6f}\n",
           (unsigned long long)got, wall, (double)got / wall / 1e9, cpu);
    return got == total && status == 0 ? 0 : 1;
}
