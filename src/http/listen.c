/* Listens on an address and port, or on a socket in the file system ("unix:PATH").
 *
 * The socket in the file system never has a wider mode than asked for: the kernel creates the file with the mode
 * that the socket has when it is bound, which is narrow; a wider mode is set afterwards. An existing file is
 * replaced only when it is a socket without a listener. At the end the file is removed only when it is still this
 * server's. */
#include "http/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char unix_prefix[] = "unix:";

static int open_socket(const struct addrinfo *ai, int *out_errno) {
    int fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, ai->ai_protocol);
    int on = 1;
    if (fd < 0) {
        *out_errno = errno;
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, SOMAXCONN) < 0) {
        *out_errno = errno;
        close(fd);
        return -1;
    }
    return fd;
}

/* Opens the listening socket on the first usable address of `host`. */
static int listen_on_address(struct hearth_http_server *server, int *out_fd, struct hearth_errmsg *msg) {
    const char *host = server->params.host;
    const unsigned port = server->params.port;
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot listen on \"%s\": %s", host, gai_strerror(rc));
    }
    int fd = -1;
    int cause = 0;
    for (const struct addrinfo *ai = list; ai != NULL && fd < 0; ai = ai->ai_next) {
        fd = open_socket(ai, &cause);
    }
    freeaddrinfo(list);
    if (fd < 0 && cause == EADDRINUSE) {
        return hearth_fail(msg, HEARTH_ERR_IO, "port %u on %s is in use by another program", port, host);
    }
    if (fd < 0) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot listen on %s port %u: %s", host, port, strerror(cause));
    }
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    if (getsockname(fd, (struct sockaddr *)&bound, &len) == 0) {
        server->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                         : ((struct sockaddr_in *)&bound)->sin_port);
    }
    *out_fd = fd;
    return HEARTH_OK;
}

/* Removes a socket that a server has left. Errors: anything else is there, with the reason why it stays. */
static int remove_stale(const struct sockaddr_un *at, struct hearth_errmsg *msg) {
    struct stat found;
    if (lstat(at->sun_path, &found) < 0) {
        return errno == ENOENT
                   ? HEARTH_OK
                   : hearth_fail(msg, HEARTH_ERR_IO, "cannot listen on unix:%s: %s", at->sun_path, strerror(errno));
    }
    if (!S_ISSOCK(found.st_mode)) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot listen on unix:%s: there is a file that is no socket",
                           at->sun_path);
    }
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool refused = fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof *at) < 0 && errno == ECONNREFUSED;
    if (fd >= 0) {
        close(fd);
    }
    if (!refused) {
        return hearth_fail(msg, HEARTH_ERR_IO, "the socket %s is in use by another program", at->sun_path);
    }
    if (unlink(at->sun_path) < 0 && errno != ENOENT) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot replace the socket %s, on which no process listens: %s",
                           at->sun_path, strerror(errno));
    }
    return HEARTH_OK;
}

static int listen_on_path(struct hearth_http_server *server, const char *path, int *out_fd, struct hearth_errmsg *msg) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (path[0] == '\0' || strlen(path) >= sizeof at.sun_path) {
        return hearth_fail(msg, HEARTH_ERR_IO, "cannot listen on unix:%s: the path of a socket has 1 to %zu bytes",
                           path, sizeof at.sun_path - 1);
    }
    strcpy(at.sun_path, path);
    int rc = remove_stale(&at, msg);
    if (rc != HEARTH_OK) {
        return rc;
    }
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat made;
    if (fd < 0 || fchmod(fd, server->params.unix_mode) < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 ||
        chmod(path, server->params.unix_mode) < 0 || lstat(path, &made) < 0 || listen(fd, SOMAXCONN) < 0) {
        rc = hearth_fail(msg, HEARTH_ERR_IO, "cannot listen on unix:%s: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    server->unix_path = strdup(path);
    server->unix_device = made.st_dev;
    server->unix_inode = made.st_ino;
    if (server->unix_path == NULL) {
        close(fd);
        unlink(path);
        return HEARTH_ERR_NOMEM;
    }
    *out_fd = fd;
    return HEARTH_OK;
}

bool hearth_http_host_is_unix(const char *host) {
    return strncmp(host, unix_prefix, sizeof unix_prefix - 1) == 0;
}

int hearth_http_listen(struct hearth_http_server *server, int *out_fd, struct hearth_errmsg *msg) {
    const char *host = server->params.host;
    return hearth_http_host_is_unix(host) ? listen_on_path(server, host + sizeof unix_prefix - 1, out_fd, msg)
                                          : listen_on_address(server, out_fd, msg);
}

void hearth_http_unlisten(struct hearth_http_server *server) {
    struct stat found;
    if (server->unix_path != NULL && lstat(server->unix_path, &found) == 0 && found.st_dev == server->unix_device &&
        found.st_ino == server->unix_inode) {
        unlink(server->unix_path);
    }
    free(server->unix_path);
    server->unix_path = NULL;
}
