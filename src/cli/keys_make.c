/* `hearth keys`: makes keys and their lines for --api-key-file. An existing key is read from standard input, since
 * every user of the machine can see arguments. */
#include "api/key_hash.h"
#include "base/buf.h"
#include "cli/commands.h"
#include "cli/keys.h"
#include "console/show.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define KEY_BYTES 24
#define SALT_BYTES 8

static const char *const usage =
    "hearth keys new [SETTING …]    makes a key: prints it on stderr, and its line for --api-key-file on stdout\n"
    "hearth keys hash [SETTING …]   the line for the key on standard input\n"
    "\n"
    "A line holds the key's hash only. Settings: name=NAME scope=infer,sessions,admin weight=N class=side|background\n"
    "rpm=N tpm=N running=N stored=TOKENS stored-bytes=N stored-sessions=N (docs/load.md)\n";

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

static int print_line(const char *key, int argc, char *const argv[]) {
    char salt[2 * SALT_BYTES + 1], text[HEARTH_KEY_HASH_TEXT_MAX];
    struct hearth_key_hash hash;
    if (!random_hex(salt, SALT_BYTES) || !hearth_key_hash_make(salt, key, &hash)) {
        return hearth_complain(1, "the system gives no random numbers, or no memory");
    }
    hearth_key_hash_print(&hash, text);
    printf("%s", text);
    for (int i = 0; i < argc; i++) {
        printf(" %s", argv[i]);
    }
    printf("\n");
    return 0;
}

static int make_key(int argc, char *const argv[]) {
    char key[3 + 2 * KEY_BYTES + 1] = "hk-";
    if (!random_hex(key + 3, KEY_BYTES)) {
        return hearth_complain(1, "the system gives no random numbers");
    }
    const int status = print_line(key, argc, argv);
    (void)fprintf(stderr, "%s\n", key);
    return status;
}

static int hash_key(int argc, char *const argv[]) {
    char key[4096];
    if (!fgets(key, sizeof(key), stdin)) {
        return hearth_complain(1, "no key on standard input");
    }
    key[strcspn(key, "\r\n")] = '\0';
    if (*key == '\0' || strpbrk(key, " \t,")) {
        return hearth_complain(1, "a key is not empty and has no blanks or commas");
    }
    return print_line(key, argc, argv);
}

int hearth_cli_keys(int argc, char *const argv[]) {
    const bool make = argc > 0 && strcmp(argv[0], "new") == 0;
    struct hearth_errmsg msg = {""};
    hearth_show_as("keys");
    if (argc == 0 || (!make && strcmp(argv[0], "hash") != 0)) {
        const bool help = argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0);
        return fputs(usage, help ? stdout : stderr) < 0 || !help;
    }
    struct hearth_buf words = {0};
    bool one_each = true, ok = hearth_buf_text(&words, "");
    for (int i = 1; i < argc && ok; i++) {
        one_each = one_each && strpbrk(argv[i], " \t") == NULL;
        ok = hearth_buf_printf(&words, "%s ", argv[i]);
    }
    /* All together: what the line holds is read like this. */
    ok = ok && one_each && hearth_key_settings_check("settings", (char *)words.data, &msg) == HEARTH_OK;
    hearth_buf_finish(&words);
    if (!ok) {
        return hearth_complain(1, "%s", *msg.text ? msg.text : one_each ? "no memory" : "one setting in an argument");
    }
    return make ? make_key(argc - 1, argv + 1) : hash_key(argc - 1, argv + 1);
}
