/* Runs a fuzz target over every file of a corpus folder once: what libFuzzer would do, without
 * it. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path) {
    FILE *f = fopen(path, "rb");
    uint8_t *data;
    long size;

    if (f == NULL || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) < 0) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    rewind(f);
    data = malloc((size_t)size + 1);
    if (data == NULL || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "cannot read %s\n", path);
        return 1;
    }
    (void)fclose(f);
    /* An exactly sized copy lets the sanitizer see an overread. */
    uint8_t *exact = malloc((size_t)size);
    if (exact == NULL && size > 0) {
        return 1;
    }
    for (long i = 0; i < size; i++) {
        exact[i] = data[i];
    }
    (void)LLVMFuzzerTestOneInput(exact, (size_t)size);
    free(exact);
    free(data);
    return 0;
}

int main(int argc, char **argv) {
    int count = 0;

    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        struct dirent *e;

        if (d == NULL) {
            fprintf(stderr, "no corpus at %s\n", argv[i]);
            return 1;
        }
        while ((e = readdir(d)) != NULL) {
            char path[4096];

            if (e->d_name[0] == '.') {
                continue;
            }
            if (snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name) >= (int)sizeof path ||
                replay_file(path) != 0) {
                return 1;
            }
            count++;
        }
        (void)closedir(d);
    }
    printf("%d inputs\n", count);
    return count > 0 ? 0 : 1;
}
