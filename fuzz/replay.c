/* SPDX-License-Identifier: Apache-2.0 */
/* Run a fuzz target over every file of the folders and files given; an empty or missing corpus is a
 * failure. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        (void)fprintf(stderr, "cannot open %s\n", path);
        return -1;
    }
    (void)fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int ok = data != NULL && size >= 0 && fread(data, 1, (size_t)size, f) == (size_t)size;
    if (ok) {
        (void)LLVMFuzzerTestOneInput(data, (size_t)size);
    }
    free(data);
    (void)fclose(f);
    return ok ? 1 : -1;
}

static int replay_dir(const char *path)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        (void)fprintf(stderr, "cannot open %s\n", path);
        return -1;
    }
    int n = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL && n >= 0) {
        if (entry->d_name[0] != '.') {
            char file[4096];
            (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            int one = replay_file(file);
            n = one < 0 ? one : n + one;
        }
    }
    (void)closedir(dir);
    return n;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        struct stat sb;
        int n = stat(argv[i], &sb) == 0 && S_ISDIR(sb.st_mode) ? replay_dir(argv[i])
                                                               : replay_file(argv[i]);
        if (n < 0) {
            return 1;
        }
        total += n;
    }
    (void)printf("%d inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}
