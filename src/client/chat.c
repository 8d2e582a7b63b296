/* `hearth chat`: the command line, and what is typed.
 *
 * One message from the arguments, or a conversation: lines from a terminal or a pipe, each of which is a message or a
 * command. What the model says goes to stdout, as does what /help and /history print; the rest goes to stderr.
 *
 * Ctrl-C. The handler sets a flag and writes to a pipe; the request that waits there ends its connection, the line
 * editor's read is interrupted. Without a prompt for the next line the program ends then, too. */
#include "client/commands.h"

#include "base/utf8.h"
#include "client/client.h"
#include "console/input.h"
#include "console/interrupt.h"
#include "console/show.h"
#include "console/tool.h"

#include <stdlib.h>
#include <string.h>

#define INTERRUPTED 130
#define STDIN_BYTES_MAX ((size_t)64 << 20)

static const struct hearth_console_command commands[] = {
    {"", "[MESSAGE]", "talk to a server; - as the message: all of standard input", 1, 0, HEARTH_CONSOLE_MANY},
};

static const struct hearth_console_option options[] = {
    {"--session", "NAME", "go on in this session, which the server keeps, or begin it", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct client_options, session)},
    CLIENT_SERVER_OPTIONS("--key", "its API key [HEARTH_API_KEY]"),
    {"--model", "NAME", "the model, where there are several", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct client_options, model)},
    {"--system", "TEXT", "system text of a conversation that begins", 1, HEARTH_CONSOLE_TEXT,
     offsetof(struct client_options, system)},
    {"--max-tokens", "N", "most tokens of a reply", 1, HEARTH_CONSOLE_NUMBER,
     offsetof(struct client_options, max_tokens)},
};

static const struct hearth_console_tool tool = HEARTH_CONSOLE_TOOL("chat", "", commands, options);

/* ---- messages ---- */

/* The message of the command line. False: it is empty, too long or no text, or cannot be read. */
static bool read_message(char *const *args, int count, struct hearth_buf *out) {
    struct hearth_buf raw = {0};
    bool ok = true;
    if (count == 1 && strcmp(args[0], "-") == 0) {
        char chunk[65536];
        for (size_t n; ok && (n = fread(chunk, 1, sizeof chunk, stdin)) > 0;) {
            ok = raw.len + n <= STDIN_BYTES_MAX && hearth_buf_append(&raw, chunk, n);
        }
        ok = ok && !ferror(stdin);
    } else {
        for (int i = 0; i < count && ok; i++) {
            ok = (i == 0 || hearth_buf_text(&raw, " ")) && hearth_buf_text(&raw, args[i]);
        }
    }
    ok = ok && raw.len > 0 && !memchr(raw.data, '\0', raw.len) &&
         hearth_utf8_append(out, (const char *)raw.data, raw.len);
    hearth_buf_finish(&raw);
    return ok;
}

/* Without a terminal. What did not reach standard output is told at the end of the program (hearth_show_end). */
static int status_of(enum client_outcome outcome) {
    return outcome == CLIENT_FAILED ? 1 : outcome == CLIENT_STOPPED && !ferror(stdout) ? INTERRUPTED : 0;
}

static int say_once(struct client_conversation *talk, const struct hearth_console_call *call) {
    struct hearth_buf message = {0};
    int status = 1;
    if (!read_message(call->args, call->arg_count, &message)) {
        status = hearth_interrupted ? INTERRUPTED : hearth_complain(1, "there is no message, or it is no text");
    } else {
        status = status_of(hearth_client_conversation_say(talk, (const char *)message.data));
    }
    hearth_buf_finish(&message);
    return status;
}

/* Lines until they end. In a pipe a failure ends them: what follows may depend on the reply. */
static int converse(struct client_conversation *talk, struct hearth_input *input) {
    struct hearth_buf line = {0};
    bool quit = false;
    int status = 0;
    while (!quit && status == 0 && (input || !ferror(stdout))) {
        const enum hearth_input_line kind = hearth_input_read(input, &line);
        const char *text = (const char *)line.data;
        enum client_outcome outcome = CLIENT_DONE;
        if (kind == HEARTH_INPUT_END) {
            (void)fputs(input ? "\n" : "", stdout);
            break;
        }
        if (kind == HEARTH_INPUT_DROPPED) {
            outcome = CLIENT_STOPPED;
        } else if (text[0] == '/' && text[1] != '/') {
            outcome = hearth_client_conversation_command(talk, text, &quit);
        } else if (text[strspn(text, " \t\n")] != '\0') {
            outcome = hearth_client_conversation_say(talk, text[0] == '/' ? text + 1 : text);
        }
        if (!input && outcome != CLIENT_DONE) {
            status = status_of(outcome);
        }
    }
    hearth_buf_finish(&line);
    return status;
}

static int run(const struct hearth_console_call *call, void *user) {
    const struct client_options *chosen = user;
    struct client_conversation talk = {0};
    struct hearth_client *client;
    int status = hearth_client_create(&chosen->server, "--key", &client);
    if (status != 0) {
        return status;
    }
    const bool once = call->arg_count > 0;
    struct hearth_input *input = once ? NULL : hearth_input_create();
    if (!hearth_client_conversation_init(&talk, chosen, client, input != NULL)) {
        status = hearth_complain(1, "out of memory");
    } else if (input && hearth_client_conversation_greet(&talk) != CLIENT_DONE) {
        status = 1;
    } else if (chosen->session &&
               hearth_client_conversation_enter(&talk, chosen->session, input || chosen->system) != CLIENT_DONE) {
        status = 1;
    } else {
        status = once ? say_once(&talk, call) : converse(&talk, input);
    }
    hearth_client_conversation_finish(&talk);
    hearth_input_destroy(input);
    hearth_client_destroy(client);
    return status;
}

int hearth_client_chat(int argc, char *const argv[]) {
    struct client_options chosen = {.max_tokens = -1};
    return hearth_console_run(&tool, argc, argv, &chosen, run);
}
