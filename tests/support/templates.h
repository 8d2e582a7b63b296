/* llama.cpp's collection of chat templates, for tests: HEARTH_TEMPLATES names its directory. */
#ifndef HEARTH_TESTS_TEMPLATES_H
#define HEARTH_TESTS_TEMPLATES_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATES_MOST = 256 };

struct templates {
    char *names[TEMPLATES_MOST]; /* sorted; without ".jinja" */
    char *texts[TEMPLATES_MOST];
    size_t n;
    size_t all; /* in the directory; more than `n`: this is a share of them */
};

static inline char *templates_read(const char *path) {
    FILE *file = fopen(path, "rb");
    size_t cap = 1 << 20;
    char *text = calloc(1, cap);
    if (file == NULL || text == NULL || fread(text, 1, cap - 1, file) == cap - 1) {
        fprintf(stderr, "templates: %s cannot be read\n", path);
        abort();
    }
    fclose(file);
    return text;
}

static inline int templates_is_one(const struct dirent *entry) {
    size_t len = strlen(entry->d_name);
    return len > 6 && strcmp(entry->d_name + len - 6, ".jinja") == 0;
}

/* Every step-th. None: the collection is not here, which is said. */
static inline struct templates templates_load_every(int step) {
    struct templates list = {.n = 0};
    struct dirent **entries = NULL;
    const char *dir = getenv("HEARTH_TEMPLATES");
    int n = dir != NULL && *dir != '\0' ? scandir(dir, &entries, templates_is_one, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        if (i % step == 0 && list.n < TEMPLATES_MOST) {
            list.texts[list.n] = templates_read(path);
            list.names[list.n++] = strndup(entries[i]->d_name, strlen(entries[i]->d_name) - 6);
        }
        free(entries[i]);
    }
    free(entries);
    list.all = n > 0 ? (size_t)n : 0;
    if (list.n == 0) {
        printf("skipped: HEARTH_TEMPLATES names no directory with llama.cpp's chat templates\n");
    }
    return list;
}

static inline struct templates templates_load(void) {
    return templates_load_every(1);
}

/* With HEARTH_SHARE=N every Nth of them, which is what `make test` has time for. */
static inline struct templates templates_load_share(void) {
    const char *share = getenv("HEARTH_SHARE");
    return templates_load_every(share != NULL && atoi(share) > 1 ? atoi(share) : 1);
}

static inline void templates_finish(struct templates *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->names[i]);
        free(list->texts[i]);
    }
    list->n = 0;
}

#endif
