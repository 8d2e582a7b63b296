/* `hearth chat`: the command line, and what is typed.
 *
 * One message from the arguments, or a conversation: lines from a terminal or a pipe, each of which is a message or a
 * command. What the model says goes to stdout, as does what /help and /history print; the rest goes to stderr.
 *
 * Ctrl-C. The handler sets a flag and writes to a pipe; the request that waits there ends its connection, the line
 * editor's read is interrupted. Where nobody is asked for the next line, the program ends then, too. */
#include "cli/chat.h"

#include "base/utf8.h"
#include "cli/chat_internal.h"
#include "cli/show.h"
#include "cli/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INTERRUPTED 130
#define STDIN_BYTES_MAX ((size_t)64 << 20)

static const struct hearth_tool_command commands[] = {
    {"", "[MESSAGE]", "talk to a server; - as the message: all of standard input", 1, 0, HEARTH_TOOL_MANY},
};

static const struct hearth_tool_option options[] = {
    {"--session", "NAME", "go on in this session, which the server keeps, or begin it", 1, HEARTH_TOOL_TEXT,
     offsetof(struct chat_options, session)},
    {"--url", "URL", "the server [HEARTH_URL, or " CHAT_DEFAULT_URL "]; unix:PATH: a socket", 1, HEARTH_TOOL_TEXT,
     offsetof(struct chat_options, url)},
    {"--cacert", "FILE", "whose certificates to trust, PEM [HEARTH_CACERT, or the system's]", 1, HEARTH_TOOL_TEXT,
     offsetof(struct chat_options, cacert)},
    {"--key", "KEY", "its API key [HEARTH_API_KEY]", 1, HEARTH_TOOL_TEXT, offsetof(struct chat_options, key)},
    {"--model", "NAME", "the model, where there are several", 1, HEARTH_TOOL_TEXT,
     offsetof(struct chat_options, model)},
    {"--system", "TEXT", "system text of a conversation that begins", 1, HEARTH_TOOL_TEXT,
     offsetof(struct chat_options, system)},
    {"--max-tokens", "N", "most tokens of a reply", 1, HEARTH_TOOL_NUMBER, offsetof(struct chat_options, max_tokens)},
};

static const struct hearth_tool tool = {
    .name = "chat",
    .about = "",
    .commands = commands,
    .command_count = 1,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* ---- Ctrl-C ---- */

volatile sig_atomic_t hearth_chat_interrupted;
static int wake[2] = {-1, -1};

void hearth_chat_wake(void) {
    const int error = errno;
    const ssize_t ignored = write(wake[1], "", 1); /* a full pipe is readable already */
    (void)ignored;
    errno = error;
}

static void on_interrupt(int number) {
    (void)number;
    hearth_chat_interrupted = 1;
    hearth_chat_wake();
}

int hearth_chat_wake_fd(void) {
    return wake[0];
}

void hearth_chat_drain(void) {
    char bytes[64];
    while (read(wake[0], bytes, sizeof bytes) > 0) {
    }
}

void hearth_chat_calm(void) {
    hearth_chat_interrupted = 0;
    hearth_chat_drain();
}

bool hearth_chat_catch_interrupts(void) {
    const struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads of lines end */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    return pipe2(wake, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGINT, &action, NULL) == 0 &&
           sigaction(SIGPIPE, &ignore, NULL) == 0;
}

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

static int say_once(struct chat_talk *talk, const struct hearth_tool_call *call) {
    struct hearth_buf message = {0};
    int status = 1;
    if (!read_message(call->args, call->arg_count, &message)) {
        status = hearth_complain(1, "there is no message, or it is no text");
    } else {
        const enum chat_outcome outcome = hearth_chat_talk_say(talk, (const char *)message.data);
        status = outcome == CHAT_DONE ? 0 : outcome == CHAT_STOPPED ? INTERRUPTED : 1;
    }
    hearth_buf_finish(&message);
    return status;
}

/* Lines until they end. In a pipe a failure ends them: what follows may depend on the reply. */
static int converse(struct chat_talk *talk, struct chat_input *input) {
    struct hearth_buf line = {0};
    bool quit = false;
    int status = 0;
    while (!quit && status == 0) {
        const enum chat_line kind = hearth_chat_input_read(input, &line);
        const char *text = (const char *)line.data;
        enum chat_outcome outcome = CHAT_DONE;
        if (kind == CHAT_LINE_END) {
            (void)fputs(input ? "\n" : "", stdout);
            break;
        }
        if (kind == CHAT_LINE_DROPPED) {
            outcome = CHAT_STOPPED;
        } else if (text[0] == '/' && text[1] != '/') {
            outcome = hearth_chat_talk_command(talk, text, &quit);
        } else if (text[strspn(text, " \t\n")] != '\0') {
            outcome = hearth_chat_talk_say(talk, text[0] == '/' ? text + 1 : text);
        }
        if (!input && outcome != CHAT_DONE) {
            status = outcome == CHAT_STOPPED ? INTERRUPTED : 1;
        }
    }
    hearth_buf_finish(&line);
    return status;
}

static int run(const struct chat_options *chosen, const struct hearth_tool_call *call) {
    struct chat_client *client = hearth_chat_client_create(chosen->url, chosen->key, chosen->cacert);
    struct chat_input *input = NULL;
    struct chat_talk talk = {0};
    int status = 1;
    if (!client) {
        return 1;
    }
    const bool once = call->arg_count > 0;
    input = once ? NULL : hearth_chat_input_create();
    if (!hearth_chat_talk_init(&talk, chosen, client, input != NULL)) {
        status = hearth_complain(1, "out of memory");
    } else if (input && hearth_chat_talk_greet(&talk) != CHAT_DONE) {
        status = 1;
    } else if (chosen->session &&
               hearth_chat_talk_enter(&talk, chosen->session, input || chosen->system) != CHAT_DONE) {
        status = 1;
    } else {
        status = once ? say_once(&talk, call) : converse(&talk, input);
    }
    hearth_chat_talk_finish(&talk);
    hearth_chat_input_destroy(input);
    hearth_chat_client_destroy(client);
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        status = hearth_complain(1, "cannot write to standard output");
    }
    return status;
}

int hearth_chat_run(int argc, char *const argv[]) {
    struct chat_options chosen = {.max_tokens = -1};
    struct hearth_tool_call call;
    char key[CHAT_KEY_BYTES];
    hearth_show_as("hearth chat");
    hearth_tool_parse(&tool, argc, argv, &chosen, &call);
    int status = call.status;
    if (call.command) {
        hearth_chat_address(&chosen.url, &chosen.key, key);
        if (chosen.key[strcspn(chosen.key, "\r\n")] != '\0') {
            status = hearth_complain(HEARTH_TOOL_USAGE, "--key needs a key of one line");
        } else {
            status = hearth_chat_catch_interrupts() ? run(&chosen, &call) : hearth_complain(1, "out of descriptors");
        }
    }
    free(call.args);
    return status;
}
