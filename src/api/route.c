/* The path of a route, a pattern in which each '*' stands for some text; and what a request's path and query say. */
#include "api/job.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define STARS_MAX 2 /* most of one route */

/* The text that a '*' stands for. */
struct star {
    const char *text;
    size_t len;
};

/* Whether a path fits a pattern. Fills the text of each '*': as long as possible, since names may hold slashes. */
static bool match(const char *pattern, const char *path, struct star *stars, size_t room) {
    while (*pattern != '\0' && *pattern != '*') {
        if (*pattern++ != *path++) {
            return false;
        }
    }
    if (*pattern == '\0') {
        return *path == '\0';
    }
    for (size_t len = strlen(path); room > 0 && len > 0; len--) {
        if (match(pattern + 1, path + len, stars + 1, room - 1)) {
            *stars = (struct star){path, len};
            return true;
        }
    }
    return false;
}

bool hearth_route_matches(const struct hearth_route *route, const char *path) {
    struct star stars[STARS_MAX];
    return match(route->path, path, stars, STARS_MAX);
}

/* Decodes a query's %XX and '+' in place. */
static void decode(char *text) {
    char *out = text;
    for (; *text != '\0'; text++) {
        unsigned byte;
        if (*text == '%' && isxdigit((unsigned char)text[1]) && isxdigit((unsigned char)text[2])) {
            (void)sscanf(text + 1, "%2x", &byte);
            *out++ = (char)byte;
            text += 2;
        } else {
            *out++ = *text == '+' ? ' ' : *text;
        }
    }
    *out = '\0';
}

char *hearth_job_param(const struct hearth_job *job, size_t index) {
    struct star stars[STARS_MAX] = {{NULL, 0}};
    const bool found = job->path != NULL && index < STARS_MAX && /* decoded by http */
                       match(job->route->path, job->path, stars, STARS_MAX) && stars[index].len > 0;
    return found ? strndup(stars[index].text, stars[index].len) : NULL;
}

char *hearth_api_query(const char *query, const char *name) {
    const size_t len = strlen(name);
    for (const char *at = query; at != NULL && *at != '\0'; at = strchr(at, '&')) {
        at += *at == '&';
        if (strncmp(at, name, len) == 0 && at[len] == '=') {
            char *value = strndup(at + len + 1, strcspn(at + len + 1, "&"));
            if (value != NULL) {
                decode(value);
            }
            return value;
        }
    }
    return NULL;
}
