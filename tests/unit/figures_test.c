/* Histograms and counters: what is counted is what is printed, cumulative, and labels cannot break a line. */
#include "report/figures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const classes[HEARTH_FIGURES_CLASSES] = {"interactive", "side", "background", "warm"};

static char *printed(const struct hearth_figures *figures, const char *model) {
    struct hearth_buf out = {0};
    assert_true(hearth_figures_print(figures, model, classes, &out));
    assert_true(hearth_buf_append(&out, "", 1));
    return (char *)hearth_buf_take(&out);
}

static void buckets_are_cumulative(void **state) {
    struct hearth_figures figures = {0};
    (void)state;
    static const int64_t us[] = {500, 1000, 1001, 90000, 400000000};
    for (size_t i = 0; i < sizeof us / sizeof us[0]; i++) {
        hearth_histogram_add(&figures.ttft, us[i]);
    }
    char *text = printed(&figures, "m");
    assert_non_null(strstr(text, "# TYPE hearth_ttft_seconds histogram\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_bucket{model=\"m\",le=\"0.001\"} 2\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_bucket{model=\"m\",le=\"0.0025\"} 3\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_bucket{model=\"m\",le=\"0.05\"} 3\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_bucket{model=\"m\",le=\"0.1\"} 4\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_bucket{model=\"m\",le=\"120\"} 4\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_bucket{model=\"m\",le=\"+Inf\"} 5\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_sum{model=\"m\"} 400.092501\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_count{model=\"m\"} 5\n"));
    free(text);
}

static void requests_count_by_class_and_reason(void **state) {
    struct hearth_figures figures = {0};
    struct hearth_report report = {.computes = true, .receipt.reason = HEARTH_REASON_EVICTED, .ttft_us = 2000000};
    (void)state;
    hearth_figures_add(&figures, &report, 1);
    hearth_figures_add(&figures, &report, 1);
    report.computes = false;
    hearth_figures_add(&figures, &report, 1); /* it never came to the model */
    char *text = printed(&figures, "m");
    assert_non_null(strstr(text, "hearth_requests_by_reason_total{model=\"m\",class=\"side\",reason=\"evicted\"} 2\n"));
    assert_non_null(strstr(text, "hearth_requests_by_reason_total{model=\"m\",class=\"warm\",reason=\"evicted\"} 0\n"));
    assert_non_null(strstr(text, "hearth_ttft_seconds_count{model=\"m\"} 2\n"));
    assert_non_null(strstr(text, "hearth_restore_seconds_count{model=\"m\"} 0\n")); /* nothing was restored */
    free(text);
}

static void a_label_breaks_no_line(void **state) {
    struct hearth_figures figures = {0};
    (void)state;
    char *text = printed(&figures, "a\"b\\c\nd");
    assert_non_null(strstr(text, "{model=\"a\\\"b\\\\c\\nd\",le=\"0.001\"} 0\n"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_are_cumulative),
        cmocka_unit_test(requests_count_by_class_and_reason),
        cmocka_unit_test(a_label_breaks_no_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
