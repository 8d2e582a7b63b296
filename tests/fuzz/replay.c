/* Plays inputs to a target without libFuzzer.
 *
 *     replay TARGET FILE|DIRECTORY …      plays each file, and those in each directory
 *     replay --list                       prints the names of the targets
 *
 * With HEARTH_FUZZ_SECONDS=N it goes on for so long with the same inputs, changed: bytes and numbers, pieces doubled,
 * taken out or put together from two inputs, and words of HEARTH_FUZZ_WORDS, a dictionary in libFuzzer's form. It keeps
 * nothing and looks at no coverage, so it is no search: it finds what is one step away from what was found before. The
 * changes are the same in every run.
 *
 * When an input stops the process, it is written to HEARTH_FUZZ_OUT (default: the working directory) as
 * crash-TARGET, and the command that plays it is printed. */
#include "fuzz.h"
#include "support/random.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INPUT_BYTES_MAX 65536

struct bytes {
    uint8_t *v;
    size_t len;
};

struct list {
    struct bytes *v;
    size_t n, cap;
};

static const struct fuzz_target *target;
static struct bytes running; /* what the target has now */
static char crash_path[4096];

static void add(struct list *list, const void *bytes, size_t len) {
    if (list->n == list->cap) {
        list->cap = list->cap > 0 ? 2 * list->cap : 64;
        list->v = realloc(list->v, list->cap * sizeof *list->v);
        HEARTH_ASSERT(list->v != NULL);
    }
    struct bytes *copy = &list->v[list->n++];
    *copy = (struct bytes){malloc(len + (len == 0)), len};
    HEARTH_ASSERT(copy->v != NULL);
    memcpy(copy->v, bytes, len);
}

static void free_list(struct list *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->v[i].v);
    }
    free(list->v);
}

/* ---- the end of a bad input ---- */

static void on_fatal(int number) {
    const int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0 && write(fd, running.v, running.len) == (ssize_t)running.len) {
        dprintf(STDERR_FILENO, "fuzz: %s ended by signal %d; once more with: replay %s %s\n", target->name, number,
                target->name, crash_path);
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void catch_fatal(void) {
    static const int numbers[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTERM}; /* TERM: it took too long */
    const char *out = getenv("HEARTH_FUZZ_OUT");
    (void)snprintf(crash_path, sizeof crash_path, "%s/crash-%s", out != NULL ? out : ".", target->name);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        (void)signal(numbers[i], on_fatal);
    }
}

static void run(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size + (size == 0)); /* of that size, for a sanitizer to see its end */
    HEARTH_ASSERT(exact != NULL);
    memcpy(exact, data, size);
    running = (struct bytes){exact, size};
    target->run(exact, size);
    running = (struct bytes){NULL, 0};
    free(exact);
}

/* ---- files ---- */

static void read_file(struct list *list, const char *path) {
    struct stat info;
    FILE *file = fopen(path, "rb");
    HEARTH_ASSERT(file != NULL && fstat(fileno(file), &info) == 0);
    uint8_t *bytes = malloc((size_t)info.st_size + 1);
    HEARTH_ASSERT(bytes != NULL);
    const size_t len = fread(bytes, 1, (size_t)info.st_size, file);
    (void)fclose(file);
    add(list, bytes, len);
    free(bytes);
}

static int is_visible(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

/* In the order of their names, so that every run is the same. */
static void read_all(struct list *list, const char *path) {
    struct dirent **entries;
    const int n = scandir(path, &entries, is_visible, alphasort);
    if (n < 0) {
        read_file(list, path);
        return;
    }
    for (int i = 0; i < n; i++) {
        char inner[4096];
        (void)snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        read_file(list, inner);
        free(entries[i]);
    }
    free(entries);
}

/* Lines like "word", name="word", with \xAB, \\ and \" in them; the others are comments. */
static void read_words(struct list *words, const char *path) {
    char line[4096];
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *at = strchr(line, '"'), *end = strrchr(line, '"');
        char word[sizeof line];
        size_t len = 0;
        if (line[0] == '#' || at == NULL || at == end) {
            continue;
        }
        for (at++; at < end; at++) {
            unsigned byte;
            if (*at == '\\' && at[1] == 'x' && sscanf(at + 2, "%2x", &byte) == 1) {
                word[len++] = (char)byte;
                at += 3;
            } else {
                at += *at == '\\';
                word[len++] = *at;
            }
        }
        add(words, word, len);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* ---- changes ---- */

/* Puts `len` bytes in the place of `gone` bytes at `at`. */
static void replace(struct bytes *input, size_t at, size_t gone, const uint8_t *bytes, size_t len) {
    if (input->len - gone + len > INPUT_BYTES_MAX) {
        return;
    }
    uint8_t *to = input->v;
    memmove(to + at + len, to + at + gone, input->len - at - gone);
    if (len > 0) {
        memmove(to + at, bytes, len);
    }
    input->len = input->len - gone + len;
}

static void change(struct bytes *input, const struct list *corpus, const struct list *words, struct rng *chance) {
    static const uint8_t odd[] = {0, 1, 0x1E, '"', '\\', '{', '[', '0', '-', 0x7F, 0x80, 0xC3, 0xED, 0xF4, 0xFF};
    const size_t at = rng_below(chance, (uint32_t)(input->len + 1)), left = input->len - at;
    const size_t some = left > 0 ? 1 + rng_below(chance, (uint32_t)(left < 64 ? left : 64)) : 0;
    const struct bytes *other = &corpus->v[rng_below(chance, (uint32_t)(corpus->n))];
    uint8_t piece[64], byte;
    switch (rng_below(chance, 8)) {
    case 0: /* a bit */
        if (left > 0) {
            input->v[at] ^= (uint8_t)(1u << rng_below(chance, 8));
        }
        break;
    case 1: /* a byte in the place of another one, or in front of it */
        byte = odd[rng_below(chance, (uint32_t)(sizeof odd))];
        replace(input, at, rng_below(chance, 2) && left > 0, &byte, 1);
        break;
    case 2: /* less */ replace(input, at, some, NULL, 0); break;
    case 3: /* twice */
        memcpy(piece, input->v + at, some);
        replace(input, at, 0, piece, some);
        break;
    case 4: /* what stands elsewhere in it */
        memcpy(piece, input->v + at, some);
        replace(input, rng_below(chance, (uint32_t)(input->len + 1)), 0, piece, some);
        break;
    case 5: /* the end of another input */
        if (other->len > 0) {
            const size_t from = rng_below(chance, (uint32_t)(other->len));
            replace(input, at, left, other->v + from, other->len - from);
        }
        break;
    default: /* a word */
        if (words->n > 0) {
            const struct bytes *word = &words->v[rng_below(chance, (uint32_t)(words->n))];
            replace(input, at, rng_below(chance, 2) ? (word->len < left ? word->len : left) : 0, word->v, word->len);
        }
    }
}

static void play_changed(const struct list *corpus, const struct list *words, long seconds) {
    struct rng chance = {.state = 1};
    struct timespec now;
    unsigned long runs = 0;
    struct bytes input = {malloc(INPUT_BYTES_MAX), 0};
    HEARTH_ASSERT(input.v != NULL && clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    const time_t end = now.tv_sec + seconds;
    while (corpus->n > 0 && now.tv_sec < end) {
        const struct bytes *from = &corpus->v[rng_below(&chance, (uint32_t)(corpus->n))];
        input.len = from->len < INPUT_BYTES_MAX ? from->len : INPUT_BYTES_MAX;
        memcpy(input.v, from->v, input.len);
        for (size_t i = 1 + rng_below(&chance, 4); i > 0; i--) {
            change(&input, corpus, words, &chance);
        }
        run(input.v, input.len);
        runs++;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
    }
    free(input.v);
    printf("%s: %zu inputs, %lu changed ones\n", target->name, corpus->n, runs);
}

int main(int argc, char **argv) {
    struct list corpus = {0}, words = {0};
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct fuzz_target *one = fuzz_targets; one->name != NULL; one++) {
            puts(one->name);
        }
        return 0;
    }
    target = argc > 1 ? fuzz_target_find(argv[1]) : NULL;
    if (target == NULL) {
        (void)fprintf(stderr, "usage: %s TARGET FILE|DIRECTORY …, or --list\n", argv[0]);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        read_all(&corpus, argv[i]);
    }
    catch_fatal();
    for (size_t i = 0; i < corpus.n; i++) {
        run(corpus.v[i].v, corpus.v[i].len);
    }
    const char *seconds = getenv("HEARTH_FUZZ_SECONDS");
    if (seconds != NULL) {
        read_words(&words, getenv("HEARTH_FUZZ_WORDS"));
        play_changed(&corpus, &words, atol(seconds));
    }
    free_list(&corpus);
    free_list(&words);
    return 0;
}
