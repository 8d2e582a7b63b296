/* The last hour: counts per minute, quantiles within a tenth, and nothing of an hour before. */
#include "report/trend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void quantiles_are_within_a_tenth(void **state) {
    (void)state;
    struct hearth_trend trend = {0};
    for (int i = 1; i <= 100; i++) {
        const struct hearth_report report = {
            .computes = true, .receipt.prompt_tokens = 100, .receipt.computed_tokens = 25, .ttft_us = i * 10000};
        hearth_trend_add(&trend, &report, 1000);
    }
    const struct hearth_trend_minute *minute = &trend.minutes[1000 % HEARTH_TREND_MINUTES];
    const double p50 = hearth_trend_quantile(minute, 0.5), p99 = hearth_trend_quantile(minute, 0.99);
    assert_true(p50 > 450 && p50 < 550);
    assert_true(p99 > 890 && p99 < 1090);
    assert_int_equal(minute->requests, 100);
    assert_int_equal(minute->computed_tokens, 2500);
}

static void an_hour_is_kept(void **state) {
    (void)state;
    struct hearth_trend trend = {0};
    const struct hearth_report report = {.computes = true, .ttft_us = 1000}, other = {.ttft_us = 1000};
    hearth_trend_add(&trend, &report, 1000);
    hearth_trend_add(&trend, &other, 1000); /* it asked for no turn of the model */
    hearth_trend_count(&trend, 5, 1, 1000);
    hearth_trend_count(&trend, 7, 1, 1059);
    json_t *hour = hearth_trend_json(&trend, 1059);
    json_t *first = json_array_get(hour, 0), *last = json_array_get(hour, 59);
    assert_int_equal(json_array_size(hour), 60);
    assert_int_equal(json_integer_value(json_object_get(first, "requests")), 1);
    assert_int_equal(json_integer_value(json_object_get(first, "evictions")), 5);
    assert_int_equal(json_integer_value(json_object_get(first, "preemptions")), 1);
    assert_int_equal(json_integer_value(json_object_get(last, "evictions")), 2);
    assert_int_equal(json_integer_value(json_object_get(last, "at")), 1059 * 60);
    json_decref(hour);
    hour = hearth_trend_json(&trend, 1060); /* the slot of minute 1000 is that of 1060 */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(hour, 59), "requests")), 0);
    json_decref(hour);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(quantiles_are_within_a_tenth),
                                       cmocka_unit_test(an_hour_is_kept)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
