/* Whether the machine runs on a battery, told from directories like the kernel's. */
#include "base/power.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SUPPLIES 3

struct supply {
    const char *name, *type, *attribute, *value, *scope;
};

static void write_file(const char *directory, const char *name, const char *value) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fprintf(file, "%s\n", value) > 0);
    assert_int_equal(fclose(file), 0);
}

static bool on_battery_with(const struct supply *supplies) {
    char root[] = "/tmp/hearth-power-XXXXXX", command[64], path[128];
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < SUPPLIES && supplies[i].name != NULL; i++) {
        snprintf(path, sizeof path, "%s/%s", root, supplies[i].name);
        assert_int_equal(mkdir(path, 0700), 0);
        write_file(path, "type", supplies[i].type);
        write_file(path, supplies[i].attribute, supplies[i].value);
        if (supplies[i].scope != NULL) {
            write_file(path, "scope", supplies[i].scope);
        }
    }
    const bool answer = hearth_power_on_battery(root);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
    return answer;
}

static void a_battery_is_told(void **state) {
    static const struct {
        struct supply supplies[SUPPLIES];
        bool battery;
    } cases[] = {
        {{{NULL, NULL, NULL, NULL, NULL}}, false},
        {{{"AC", "Mains", "online", "1", NULL}, {"BAT0", "Battery", "status", "Charging", NULL}}, false},
        {{{"AC", "Mains", "online", "0", NULL}, {"BAT0", "Battery", "status", "Discharging", NULL}}, true},
        {{{"BAT0", "Battery", "status", "Discharging", "System"}, {"usb", "USB", "online", "1", NULL}}, false},
        {{{"BAT0", "Battery", "status", "Full", NULL}, {"BAT1", "Battery", "status", "Discharging", NULL}}, true},
        {{{"hidpp", "Battery", "status", "Discharging", "Device"}}, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(on_battery_with(cases[i].supplies), cases[i].battery);
    }
    assert_false(hearth_power_on_battery("/nonexistent"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_battery_is_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
