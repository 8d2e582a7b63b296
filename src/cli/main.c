/* The program: picks the command, and prints version and usage. Everything else is in serve.c. */
#include "cli/commands.h"
#include "client/commands.h"
#include "console/show.h"
#include "console/version.h"
#include "engine/llama.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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
    int status = 0;
    if (!generate(&text)) {
        status = hearth_complain(1, "out of memory");
    } else if (fwrite(text.data, 1, text.len, stdout) != text.len || fflush(stdout) != 0) {
        status = hearth_complain(1, "cannot write to standard output");
    }
    hearth_buf_finish(&text);
    return status;
}

static int print_version(void) {
    return printf("hearth %s (llama.cpp %s)\n", HEARTH_VERSION, hearth_llama_version()) < 0;
}

static int run_serve(int argc, char *const argv[]) {
    struct hearth_options options;
    enum hearth_options_ask ask;
    struct hearth_errmsg msg = {""};
    int status = 0;
    if (hearth_options_parse(&options, argc, argv, &ask, &msg) != HEARTH_OK) {
        status = hearth_complain(1, "%s", msg.text);
    } else if (ask == HEARTH_OPTIONS_HELP) {
        status = print_text(hearth_options_help);
    } else if (ask == HEARTH_OPTIONS_VERSION) {
        status = print_version();
    } else if (ask == HEARTH_OPTIONS_DEVICES) {
        status = print_text(hearth_llama_devices);
    } else {
        status = hearth_cli_serve(&options, argc, argv);
    }
    hearth_options_finish(&options);
    return status;
}

int main(int argc, char *argv[]) {
    static const char *const commands[] = {"serve", "chat",   "sessions", "keys",    "kv",   "top",
                                           "why",   "record", "replay",   "options", "help", "version"};
    const char *command = argc > 1 ? argv[1] : "--help";
    (void)umask(077); /* whatever is written is the user's own */
    if (strcmp(command, "serve") == 0) {
        return run_serve(argc - 2, argv + 2);
    }
    if (strcmp(command, "keys") == 0) {
        return hearth_cli_keys(argc - 2, argv + 2);
    }
    if (strcmp(command, "kv") == 0) {
        return hearth_cli_kv(argc - 2, argv + 2);
    }
    if (strcmp(command, "record") == 0) {
        return hearth_client_record(argc - 2, argv + 2);
    }
    if (strcmp(command, "replay") == 0) {
        return hearth_cli_replay(argc - 2, argv + 2);
    }
    if (strcmp(command, "sessions") == 0) {
        return hearth_cli_sessions(argc - 2, argv + 2);
    }
    if (strcmp(command, "chat") == 0) {
        return hearth_client_chat(argc - 2, argv + 2);
    }
    if (strcmp(command, "top") == 0) {
        return hearth_client_top(argc - 2, argv + 2);
    }
    if (strcmp(command, "why") == 0) {
        return hearth_client_why(argc - 2, argv + 2);
    }
    if (strcmp(command, "--version") == 0 || strcmp(command, "version") == 0) {
        return print_version();
    }
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0 || strcmp(command, "help") == 0) {
        return fputs(usage, stdout) < 0;
    }
    if (strcmp(command, "options") == 0) { /* docs/options.md, docs/llama-server.md */
        const bool llama = argc > 2 && strcmp(argv[2], "--llama-server") == 0;
        return print_text(llama ? hearth_options_llama_markdown : hearth_options_markdown);
    }
    if (command[0] == '-') {
        return run_serve(argc - 1, argv + 1);
    }
    const char *near = hearth_show_nearest(command, commands, sizeof(commands) / sizeof(commands[0]));
    return hearth_complain(1, "unknown command '%.100s'%s%s%s (see hearth --help)", command,
                           near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
}
