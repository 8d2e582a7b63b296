/* See power.h. A device's battery (a mouse's) has the scope "Device" and says nothing about the machine. */
#include "base/power.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* The first word of a supply's attribute; "": it has none. */
static void read_word(const char *directory, const char *supply, const char *name, char word[32]) {
    char path[512];
    word[0] = '\0';
    if (snprintf(path, sizeof path, "%s/%s/%s", directory, supply, name) >= (int)sizeof path) {
        return;
    }
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        (void)(fscanf(file, "%31s", word) == 1);
        (void)fclose(file);
    }
}

static bool word_is(const char *directory, const char *supply, const char *name, const char *wanted) {
    char word[32];
    read_word(directory, supply, name, word);
    return strcmp(word, wanted) == 0;
}

bool hearth_power_on_battery(const char *directory) {
    bool discharging = false, supplied = false;
    DIR *dir = opendir(directory);
    if (dir == NULL) {
        return false;
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const char *supply = entry->d_name;
        if (supply[0] == '.') {
            continue;
        }
        if (word_is(directory, supply, "type", "Battery")) {
            discharging = discharging || (word_is(directory, supply, "status", "Discharging") &&
                                          !word_is(directory, supply, "scope", "Device"));
        } else {
            supplied = supplied || word_is(directory, supply, "online", "1");
        }
    }
    (void)closedir(dir);
    return discharging && !supplied;
}
