/* Misuse must stop the process: the statement runs in a child, which has to die of SIGABRT. */
#ifndef HEARTH_TESTS_STOPS_H
#define HEARTH_TESTS_STOPS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define assert_stops(statement)                                      \
    do {                                                             \
        fflush(NULL);                                                \
        pid_t child_ = fork();                                       \
        assert_true(child_ >= 0);                                    \
        if (child_ == 0) {                                           \
            (void)signal(SIGABRT, SIG_DFL); /* cmocka catches it */  \
            (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});    \
            int null_ = open("/dev/null", O_WRONLY);                 \
            (void)dup2(null_, STDERR_FILENO);                        \
            statement;                                               \
            _exit(0);                                                \
        }                                                            \
        int status_ = 0;                                             \
        assert_int_equal(waitpid(child_, &status_, 0), child_);      \
        if (!WIFSIGNALED(status_) || WTERMSIG(status_) != SIGABRT) { \
            fail_msg("%s did not stop the process", #statement);     \
        }                                                            \
    } while (0)

#endif
