/* `hearth keys`: makes keys and their lines for --api-key-file. An existing key is read from standard input, since
 * every user of the machine can see arguments. */
#include "api/key_hash.h"
#include "base/buf.h"
#include "cli/commands.h"
#include "cli/keys.h"
#include "console/show.h"
#include "console/tool.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define KEY_BYTES 24
#define SALT_BYTES 8

static const struct hearth_console_command commands[] = {
    {"new", "[SETTING…]", "makes a key: prints it on stderr, and its line for --api-key-file on stdout", 1, 0,
     HEARTH_CONSOLE_MANY},
    {"hash", "[SETTING…]", "the line for the key on standard input", 2, 0, HEARTH_CONSOLE_MANY},
};

static const struct hearth_console_tool tool = {
    .name = "keys",
    .about = "keys of clients. A line of --api-key-file holds the key's hash only.\n"
             "Settings: name=NAME scope=infer,sessions,admin weight=N class=side|background\n"
             "rpm=N tpm=N running=N stored=TOKENS stored-bytes=N stored-sessions=N (docs/load.md)",
    .commands = commands,
    .command_count = 2,
};

static bool random_hex(char *out, size_t bytes) {
    unsigned char random[KEY_BYTES];
    if (getrandom(random, bytes, 0) != (ssize_t)bytes) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        (void)sprintf(out + 2 * i, "%02x", random[i]);
    }
    return true;
}

static int print_line(const char *key, char *const *settings) {
    char salt[2 * SALT_BYTES + 1], text[HEARTH_KEY_HASH_TEXT_MAX];
    struct hearth_key_hash hash;
    if (!random_hex(salt, SALT_BYTES) || !hearth_key_hash_make(salt, key, &hash)) {
        return hearth_complain(1, "the system gives no random numbers, or no memory");
    }
    hearth_key_hash_print(&hash, text);
    printf("%s", text);
    for (; *settings; settings++) {
        printf(" %s", *settings);
    }
    printf("\n");
    return 0;
}

static int make_key(char *const *settings) {
    char key[3 + 2 * KEY_BYTES + 1] = "hk-";
    if (!random_hex(key + 3, KEY_BYTES)) {
        return hearth_complain(1, "the system gives no random numbers");
    }
    const int status = print_line(key, settings);
    (void)fprintf(stderr, "%s\n", key);
    return status;
}

static int hash_key(char *const *settings) {
    char key[4096];
    if (!fgets(key, sizeof(key), stdin)) {
        return hearth_complain(1, "no key on standard input");
    }
    key[strcspn(key, "\r\n")] = '\0';
    if (*key == '\0' || strpbrk(key, " \t,")) {
        return hearth_complain(1, "a key is not empty and has no blanks or commas");
    }
    return print_line(key, settings);
}

static int run(const struct hearth_console_call *call, void *user) {
    struct hearth_errmsg msg = {""};
    struct hearth_buf words = {0};
    bool one_each = true, ok = hearth_buf_text(&words, "");
    (void)user;
    for (int i = 0; i < call->arg_count && ok; i++) {
        one_each = one_each && strpbrk(call->args[i], " \t") == NULL;
        ok = hearth_buf_printf(&words, "%s ", call->args[i]);
    }
    /* All together: what the line holds is read like this. */
    ok = ok && one_each && hearth_key_settings_check("settings", (char *)words.data, &msg) == HEARTH_OK;
    hearth_buf_finish(&words);
    if (!ok) {
        return hearth_complain(1, "%s", *msg.text ? msg.text : one_each ? "no memory" : "one setting in an argument");
    }
    return call->command == &commands[0] ? make_key(call->args) : hash_key(call->args);
}

int hearth_cli_keys(int argc, char *const argv[]) {
    return hearth_console_run(&tool, argc, argv, NULL, run);
}
