/* The program: picks the command, prints version and usage. */
#include "cli/commands.h"
#include "client/commands.h"
#include "console/show.h"
#include "console/version.h"
#include "engine/llama.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const usage =
    "hearth: an LLM server for agents that never computes a prompt twice\n"
    "\n"
    "  hearth serve -m MODEL.gguf     serve a model on http://127.0.0.1:8080 (\"serve\" may be left out)\n"
    "  hearth serve --help            all options\n"
    "  hearth chat                    talk to it in the terminal; hearth chat --help: options\n"
    "  hearth top                     what it is doing at this moment; hearth top --help: options\n"
    "  hearth why                     why requests were slow, and what to do; hearth why --help: options\n"
    "  hearth sessions ls             the conversations that it keeps; hearth sessions --help: more commands\n"
    "  hearth keys new                a key for --api-key-file, hashed; hearth keys --help: more\n"
    "  hearth kv ls                   the state it keeps on disk; hearth kv --help: more commands\n"
    "  hearth record FILE             records which prompts begin alike, without their text; hearth record --help\n"
    "  hearth replay TRACE            what would be computed of recorded requests; hearth replay --help\n"
    "  hearth --version               versions of hearth and llama.cpp\n"
    "  hearth --help                  this text\n";

static int print_text(bool (*generate)(struct hearth_buf *out)) {
    struct hearth_buf text = {0};
    const bool ok = generate(&text);
    if (ok) {
        (void)fwrite(text.data, 1, text.len, stdout);
    }
    hearth_buf_finish(&text);
    return ok ? 0 : hearth_complain(1, "out of memory");
}

static int version(int argc, char *const argv[]) {
    (void)argc, (void)argv;
    (void)printf("hearth %s (llama.cpp %s)\n", HEARTH_VERSION, hearth_llama_version());
    return 0;
}

static int help(int argc, char *const argv[]) {
    (void)argc, (void)argv;
    (void)fputs(usage, stdout);
    return 0;
}

/* docs/options.md, or docs/llama-server.md. */
static int print_page(int argc, char *const argv[]) {
    const bool llama = argc > 0 && strcmp(argv[0], "--llama-server") == 0;
    return print_text(llama ? hearth_options_llama_markdown : hearth_options_markdown);
}

/* A server does not end because what it prints at its start cannot be written; its other texts are as a command's. */
static int serve(int argc, char *const argv[]) {
    struct hearth_options options;
    enum hearth_options_ask ask;
    struct hearth_errmsg msg = {""};
    int status = 0;
    if (hearth_options_parse(&options, argc, argv, &ask, &msg) != HEARTH_OK) {
        status = hearth_complain(1, "%s", msg.text);
    } else if (ask == HEARTH_OPTIONS_RUN) {
        status = hearth_cli_serve(&options, argc, argv);
    } else if (ask == HEARTH_OPTIONS_VERSION) {
        status = hearth_show_end(version(0, NULL));
    } else {
        status = hearth_show_end(print_text(ask == HEARTH_OPTIONS_HELP ? hearth_options_help : hearth_llama_devices));
    }
    hearth_options_finish(&options);
    return status;
}

static const struct {
    const char *name;
    int (*run)(int argc, char *const argv[]);
} commands[] = {{"chat", hearth_client_chat},
                {"sessions", hearth_cli_sessions},
                {"keys", hearth_cli_keys},
                {"kv", hearth_cli_kv},
                {"top", hearth_client_top},
                {"why", hearth_client_why},
                {"record", hearth_client_record},
                {"replay", hearth_cli_replay},
                {"options", print_page},
                {"help", help},
                {"--help", help},
                {"-h", help},
                {"version", version},
                {"--version", version},
                {"serve", serve}};

#define COMMANDS (sizeof commands / sizeof *commands)

/* The number of a standard stream that was closed would be that of a file or a connection, which would get what is
 * printed. Reading and writing such a stream fails as before. */
static void fill_standard_streams(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) { /* the lowest free number */
            (void)open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
        }
    }
}

int main(int argc, char *argv[]) {
    const char *command = argc > 1 ? argv[1] : "--help", *names[COMMANDS];
    fill_standard_streams();
    (void)umask(077); /* whatever is written is the user's own */
    for (size_t i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(command, names[i]) == 0) {
            const int status = commands[i].run(argc - 2, argv + 2);
            return commands[i].run == serve ? status : hearth_show_end(status);
        }
    }
    if (command[0] == '-') {
        return serve(argc - 1, argv + 1);
    }
    const char *near = hearth_show_nearest(command, names, COMMANDS);
    return hearth_complain(1, "unknown command '%.100s'%s%s%s (see hearth --help)", command,
                           near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}
