/* Loaded into a program (tests/client/faulty.py): a name that has two addresses, the first one at which no server of
 * the tests listens. */
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*resolve)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = NULL;
    *(void **)&resolve = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!node || strcmp(node, "several.test") != 0) {
        return resolve(node, service, hints, found);
    }
    struct addrinfo **end = found;
    const char *const addresses[] = {"127.0.0.2", "127.0.0.1"};
    for (int i = 0; i < 2; i++) {
        const int failed = resolve(addresses[i], service, hints, end);
        if (failed != 0) {
            return failed;
        }
        while (*end) {
            end = &(*end)->ai_next;
        }
    }
    return 0;
}
