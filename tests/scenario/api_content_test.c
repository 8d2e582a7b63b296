/* Content that is not text and messages that say nothing, in every dialect: what the model is given, over a service
 * that only takes requests down. */
#include "support/fake_service.h"
#include "scenario/own_stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT "/v1/chat/completions"
#define RESPONSES "/v1/responses"
#define MESSAGES "/v1/messages"
#define PNG "iVBORw0KGgoAAAANSUhEUgAAAAE="
#define TURN(role, text) "<|im_start|>" role "\n" text "<|im_end|>\n"
#define REPLY "<|im_start|>assistant\n"
#define SEE_PNG "[image, image/png, 20 bytes; this model cannot see it]"
#define READ_PDF "[file, application/pdf, 9 bytes, a.pdf; this model cannot read it]"

static const struct fake_plan quick = {.pieces = 1, .piece = "Well."};

static int setup(void **state) {
    struct stage_options options;
    (void)state;
    stage_options_default(&options);
    stage_open(&stage, &options);
    fake_set_plan(&quick);
    return 0;
}

/* The last prompt's text. Caller frees. */
static char *prompt_text(void) {
    const struct fake_request *last = fake_last();
    struct hearth_buf text = {0};
    for (size_t i = 0; i < last->prompt_tokens; i++) {
        assert_true(hearth_engine_append_text(stage.engine, last->prompt[i], true, &text));
    }
    assert_true(hearth_buf_append(&text, "", 1));
    return (char *)hearth_buf_take(&text);
}

/* Single quotes stand for double ones. Caller frees. */
static char *body_of(const char *path, const char *messages) {
    struct hearth_buf body = {0};
    const char *more = strcmp(path, MESSAGES) == 0 ? "'max_tokens':9," : "";
    assert_true(
        hearth_buf_printf(&body, "{%s'%s':[%s]}", more, strcmp(path, RESPONSES) == 0 ? "input" : "messages", messages));
    for (char *at = (char *)body.data; *at != '\0'; at++) {
        *at = *at == '\'' ? '"' : *at;
    }
    return (char *)hearth_buf_take(&body);
}

static json_t *ask(const char *path, const char *messages, int want) {
    char *body = body_of(path, messages);
    json_t *answer = stage_want(&stage, "POST", path, body, want);
    free(body);
    return answer;
}

static void assert_prompt(const char *path, const char *messages, const char *want) {
    json_decref(ask(path, messages, 200));
    char *text = prompt_text();
    if (strcmp(text, want) != 0) {
        fail_msg("%s %s:\n%s\nnot\n%s", path, messages, text, want);
    }
    free(text);
}

#define SAID(role, content) "{'role':'" role "','content':" content "}"
#define USER(text) SAID("user", "'" text "'")
#define DATA "data:image/png;base64," PNG
#define CALLED                                                                                             \
    "{'role':'assistant','content':null,'tool_calls':[{'id':'c','type':'function','function':{'name':'f'," \
    "'arguments':'{}'}}]}"
#define BASE64(type, data) "'source':{'type':'base64','media_type':'" type "','data':'" data "'}"
#define LONG_URL                                                                                           \
    "https://x.org/p.png?sig="                                                                             \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789" \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"

static const struct {
    const char *path, *content, *note;
} notes[] = {
    {CHAT, "{'type':'image_url','image_url':{'url':'" DATA "','detail':'low'}}", SEE_PNG},
    {CHAT, "{'type':'image_url','image_url':'" DATA "'}", SEE_PNG},
    {CHAT, "{'type':'image_url','image_url':{'url':'https://x.org/p.png'}}",
     "[image, https://x.org/p.png; this model cannot see it]"},
    {CHAT, "{'type':'image_url','image_url':{'url':'" LONG_URL "'}}",
     "[image, https://x.org/p.png; this model cannot see it]"},
    {CHAT, "{'type':'input_audio','input_audio':{'data':'AAAA','format':'wav'}}",
     "[audio, audio/wav, 3 bytes; this model cannot hear it]"},
    {CHAT, "{'type':'file','file':{'filename':'a.pdf','file_data':'data:application/pdf;base64,JVBERi0xLjQK'}}",
     READ_PDF},
    {CHAT, "{'type':'file','file':{'file_id':'file-7'}}", "[file, file-7; this model cannot read it]"},
    {CHAT, "{'type':'video_url','video_url':{'url':'data:video/mp4,abc'}}",
     "[video, video/mp4, 3 bytes; this model cannot see it]"},
    {CHAT, "{'type':'image_url'}", "[image; this model cannot see it]"},
    /* What a client writes can neither end the line nor be of any length. */
    {CHAT, "{'type':'file','file':{'filename':'a\\nb'}}", "[file, a b; this model cannot read it]"},
    {CHAT, "{'type':'image','mimeType':'im\\nage','data':'" PNG "'}", "[image, 20 bytes; this model cannot see it]"},
    {RESPONSES, "{'type':'input_image','image_url':'" DATA "','detail':'auto'}", SEE_PNG},
    {RESPONSES, "{'type':'input_image','file_id':'file-7'}", "[image, file-7; this model cannot see it]"},
    {RESPONSES, "{'type':'input_file','filename':'a.pdf','file_data':'JVBERi0xLjQK'}", READ_PDF},
    {RESPONSES, "{'type':'input_file','file_url':'https://x.org/a.pdf'}",
     "[file, https://x.org/a.pdf; this model cannot read it]"},
    {RESPONSES, "{'type':'input_audio','input_audio':{'data':'AAAA','format':'mp3'}}",
     "[audio, audio/mp3, 3 bytes; this model cannot hear it]"},
    {MESSAGES, "{'type':'image'," BASE64("image/png", PNG) "}", SEE_PNG},
    {MESSAGES, "{'type':'image','source':{'type':'url','url':'https://x.org/p.png'}}",
     "[image, https://x.org/p.png; this model cannot see it]"},
    {MESSAGES, "{'type':'document'," BASE64("application/pdf", "JVBERi0xLjQK") ",'title':'a.pdf'}", READ_PDF},
    {MESSAGES, "{'type':'document','source':{'type':'file','file_id':'file-7'},'context':'Of 1999.'}",
     "[file, file-7; this model cannot read it]\nOf 1999."},
    {MESSAGES, "{'type':'container_upload','file_id':'file-7'}", "[file, file-7; this model cannot read it]"},
    {MESSAGES,
     "{'type':'document','source':{'type':'content','content':[{'type':'text','text':'a'},"
     "{'type':'image'," BASE64("image/png", PNG) "},{'type':'text','text':'b'}]}}",
     "a\n" SEE_PNG "\nb"},
};

static void a_note_stands_for_what_is_no_text(void **state) {
    char messages[1024], want[512];
    (void)state;
    for (size_t i = 0; i < sizeof notes / sizeof notes[0]; i++) {
        const bool responses = strcmp(notes[i].path, RESPONSES) == 0;
        snprintf(messages, sizeof messages, SAID("user", "[{'type':'%s','text':'Look:'},%s]"),
                 responses ? "input_text" : "text", notes[i].content);
        snprintf(want, sizeof want, TURN("user", "Look:\n%s") REPLY, notes[i].note);
        assert_prompt(notes[i].path, messages, want);
    }
}

/* A part may be a bare string, and a body may begin with a byte order mark. */
static void text_comes_in_other_forms(void **state) {
    static const char body[] = "\xEF\xBB\xBF{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
    (void)state;
    assert_prompt(CHAT, SAID("user", "['a',{'type':'text','text':'b'}]"), TURN("user", "a\nb") REPLY);
    json_decref(stage_want(&stage, "POST", CHAT, body, 200));
    json_decref(stage_want(&stage, "POST", MESSAGES, body, 200));
}

/* In a message of any role and in the result of a tool; there, parts of unknown types become notes, too. */
static void notes_stand_wherever_content_does(void **state) {
    (void)state;
    assert_prompt(CHAT, SAID("system", "[{'type':'image_url','image_url':{'url':'" DATA "'}}]") "," USER("x"),
                  TURN("system", SEE_PNG) TURN("user", "x") REPLY);
    assert_prompt(CHAT,
                  USER("x") "," SAID("assistant", "[{'type':'text','text':'a'},{'type':'image','data':'" PNG "'},"
                                                  "{'type':'smell'}]") "," USER("y"),
                  TURN("user", "x") TURN("assistant", "a\n" SEE_PNG) TURN("user", "y") REPLY);
    json_decref(ask(CHAT,
                    USER("x") "," CALLED ",{'role':'tool','tool_call_id':'c','content':[{'type':'smell'},"
                              "{'type':'image_url','image_url':{'url':'" DATA "'}}]}",
                    200));
    char *text = prompt_text();
    assert_non_null(strstr(text, "[content; this model cannot read it]\n" SEE_PNG));
    free(text);
    json_decref(ask(MESSAGES,
                    USER("x") "," SAID("assistant", "[{'type':'tool_use','id':'c','name':'f','input':{}}]") "," SAID(
                        "user", "[{'type':'tool_result','tool_use_id':'c','content':[{'type':'image'," BASE64(
                                    "image/png", PNG) "},{'type':'smell'}]}]"),
                    200));
    text = prompt_text();
    assert_non_null(strstr(text, SEE_PNG "\n[content; this model cannot read it]"));
    free(text);
    json_decref(ask(RESPONSES,
                    USER("x") ",{'type':'function_call','call_id':'c','name':'f','arguments':'{}'},"
                              "{'type':'function_call_output','call_id':'c','output':[{'type':'input_image',"
                              "'image_url':'" DATA "'}]}",
                    200));
    text = prompt_text();
    assert_non_null(strstr(text, SEE_PNG));
    free(text);
    json_decref(ask(CHAT, SAID("user", "[{'type':'smell'}]"), 400));
    json_decref(ask(MESSAGES, SAID("user", "[{'type':'smell'}]"), 400));
    json_decref(ask(RESPONSES, SAID("user", "[{'type':'smell'}]"), 400));
}

/* Blocks that hosted tools and other services leave in a history are not printed, and end no session. */
static void blocks_of_other_services_are_left_out(void **state) {
    static const char *const types[] = {"redacted_thinking",
                                        "server_tool_use",
                                        "mcp_tool_use",
                                        "mcp_tool_result",
                                        "web_search_tool_result",
                                        "web_fetch_tool_result",
                                        "code_execution_tool_result",
                                        "bash_code_execution_tool_result",
                                        "tool_search_tool_result",
                                        "advisor_tool_result",
                                        "mcp_tool_listing",
                                        "fallback"};
    char messages[512];
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        snprintf(messages, sizeof messages,
                 USER("x") "," SAID("assistant", "[{'type':'%s'},{'type':'text','text':'a'}]") "," SAID(
                     "user", "[{'type':'%s'},{'type':'text','text':'y'}]"),
                 types[i], types[i]);
        assert_prompt(MESSAGES, messages, TURN("user", "x") TURN("assistant", "a") TURN("user", "y") REPLY);
    }
}

/* Agents of one client write to each other; and tools bring nothing at all. */
static void messages_between_agents_are_the_users_side(void **state) {
    (void)state;
    assert_prompt(RESPONSES,
                  USER("x") ",{'type':'agent_message','author':'main','recipient':'a','content':["
                            "{'type':'input_text','text':'Sender: main'},"
                            "{'type':'encrypted_content','encrypted_content':'Count them.'}]}",
                  TURN("user", "x") TURN("user", "Sender: main\nCount them.") REPLY);
    json_decref(ask(RESPONSES,
                    USER("x") ",{'type':'function_call','call_id':'c','name':'f','arguments':'{}'},"
                              "{'type':'function_call_output','call_id':'c','output':null}",
                    200));
}

static void warnings_say_what_was_not_shown(void **state) {
    static const char *const paths[] = {CHAT, MESSAGES};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *body = body_of(paths[i], SAID("user", "[{'type':'image'," BASE64(
                                                        "image/png", PNG) ",'name':'a\\\"\\u00e9'},"
                                                                          "{'type':'document'," BASE64(
                                                                              "application/pdf", "JVBERi0xLjQK") "}]"));
        char header[256];
        struct response response = http_call(stage.port, "POST", paths[i], NULL, body);
        assert_int_equal(response.status, 200);
        assert_true(response_header(&response, "Warning", header, sizeof header));
        assert_string_equal(header,
                            "299 - \"not shown to the model, which reads text only: image, image/png, 20 bytes, "
                            "a\\\"?? (and more; see hearth.warnings)\"");
        json_t *answer = json_loads((const char *)response.body.data, 0, NULL);
        assert_string_equal(json_str(answer, "hearth.warnings.0"),
                            "not shown to the model, which reads text only: image, image/png, 20 bytes, a\"\xC3\xA9");
        assert_string_equal(json_str(answer, "hearth.warnings.1"),
                            "not shown to the model, which reads text only: file, application/pdf, 9 bytes");
        assert_int_equal(json_array_size(json_at(answer, "hearth.warnings")), 2);
        json_decref(answer);
        response_finish(&response);
        free(body);
    }
    /* Items that nothing is known of: before a message, and behind the last one. */
    json_t *items = ask(RESPONSES, "{'type':'zork\\u00e9'}," USER("x") ",{'type':'zork_output','call_id':'c'}", 200);
    assert_string_equal(json_str(items, "hearth.warnings.0"),
                        "not shown to the model, which reads text only: an item of type zork_output");
    assert_string_equal(json_str(items, "hearth.warnings.1"),
                        "not shown to the model, which reads text only: an item of type zork\xC3\xA9");
    json_decref(items);
    json_t *plain = ask(CHAT, USER("x"), 200);
    assert_null(json_at(plain, "hearth.warnings"));
    json_decref(plain);
}

/* The bytes of content are in no store. */
static void stored_items_have_the_note(void **state) {
    char path[128];
    int status;
    (void)state;
    json_t *made = ask(RESPONSES, SAID("user", "[{'type':'input_image','image_url':'" DATA "'}]"), 200);
    snprintf(path, sizeof path, RESPONSES "/%s/input_items", json_str(made, "id"));
    json_t *items = stage_call(&stage, "GET", path, NULL, &status);
    assert_string_equal(json_str(items, "data.0.content.0.type"), "input_text");
    assert_string_equal(json_str(items, "data.0.content.0.text"), SEE_PNG);
    json_decref(items);
    json_decref(made);
}

/* ---- messages that say nothing ---- */

static void messages_that_say_nothing_are_left_out(void **state) {
    static const char *const empty[] = {"{'role':'%s','content':''}",
                                        "{'role':'%s','content':[]}",
                                        "{'role':'%s','content':null}",
                                        "{'role':'%s'}",
                                        "{'role':'%s','content':[],'output_config':{'effort':'medium'}}",
                                        "{'role':'%s','content':[{'type':'text','text':''}]}"};
    static const char *const paths[] = {CHAT, RESPONSES, MESSAGES};
    char message[128], messages[1024];
    (void)state;
    for (size_t i = 0; i < sizeof empty / sizeof empty[0] * 2; i++) {
        snprintf(message, sizeof message, empty[i / 2], i % 2 == 0 ? "system" : "user");
        snprintf(messages, sizeof messages, "%s," USER("x") ",%s," SAID("assistant", "'a'") ",%s," USER("y") ",%s",
                 message, message, message, message);
        for (size_t k = 0; k < 3; k++) {
            assert_prompt(paths[k], messages, TURN("user", "x") TURN("assistant", "a") TURN("user", "y") REPLY);
            json_t *refused = ask(paths[k], message, 400);
            assert_string_equal(json_str(refused, "error.type"), "invalid_request_error");
            json_decref(refused);
        }
    }
}

/* A reply may have been empty: it stays, for it was sampled so. The result of a tool stays, too. */
static void replies_and_results_may_be_empty(void **state) {
    (void)state;
    assert_prompt(CHAT, USER("x") "," SAID("assistant", "''") "," USER("y"),
                  TURN("user", "x") TURN("assistant", "") TURN("user", "y") REPLY);
    assert_prompt(RESPONSES, USER("x") "," SAID("assistant", "[]") "," USER("y"),
                  TURN("user", "x") TURN("assistant", "") TURN("user", "y") REPLY);
    assert_prompt(MESSAGES, USER("x") "," SAID("assistant", "[]") "," USER("y"),
                  TURN("user", "x") TURN("assistant", "") TURN("user", "y") REPLY);
    assert_prompt(MESSAGES, USER("x") "," SAID("assistant", "[{'type':'server_tool_use'}]") "," SAID("system", "'s'"),
                  TURN("user", "x") TURN("system", "s") REPLY);
    json_decref(ask(MESSAGES,
                    USER("x") "," SAID("assistant", "[{'type':'tool_use','id':'c','name':'f','input':{}}]") "," SAID(
                        "system", "[]") "," SAID("user", "[{'type':'tool_result','tool_use_id':'c','content':[]}]"),
                    200));
    json_decref(
        ask(CHAT, USER("x") "," CALLED "," SAID("user", "''") ",{'role':'tool','tool_call_id':'c','content':''}", 200));
}

/* An assistant's message at the end is continued; one with an empty message behind it is complete. */
static void an_empty_message_ends_the_one_before(void **state) {
    static const char *const paths[] = {CHAT, MESSAGES};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_prompt(paths[i], USER("x") "," SAID("assistant", "'Well'"), TURN("user", "x") REPLY "Well");
        assert_prompt(paths[i], USER("x") "," SAID("assistant", "'Well'") "," SAID("system", "[]"),
                      TURN("user", "x") TURN("assistant", "Well") REPLY);
    }
    json_decref(stage_want(&stage, "POST", CHAT,
                           "{\"continue_final_message\":true,\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
                           "{\"role\":\"assistant\",\"content\":\"Well\"},{\"role\":\"user\",\"content\":\"\"}]}",
                           200));
    char *text = prompt_text();
    assert_string_equal(text, TURN("user", "x") REPLY "Well");
    free(text);
}

/* Programs that call the model in a loop send its messages one behind the other. */
static void several_messages_of_the_assistant_are_complete(void **state) {
    (void)state;
    assert_prompt(CHAT, USER("x") "," SAID("assistant", "'One'") "," SAID("assistant", "'Two'"),
                  TURN("user", "x") TURN("assistant", "One") TURN("assistant", "Two") REPLY);
}

/* A breakpoint in a message that is left out stands at the end of the one before. */
static void breakpoints_of_empty_messages_move(void **state) {
    static const char mark[] = "'cache_control':{'type':'ephemeral'}";
    char messages[512];
    (void)state;
    snprintf(messages, sizeof messages,
             SAID("user", "[{'type':'text','text':'x',%s}]") "," SAID("assistant", "'a'") "," USER("y"), mark);
    json_decref(ask(MESSAGES, messages, 200));
    assert_int_equal(fake_last()->pin_count, 1);
    const int32_t position = fake_last()->pins[0].position;
    snprintf(messages, sizeof messages,
             USER("x") "," SAID("system", "[{'type':'text','text':'',%s}]") "," SAID("assistant", "'a'") "," USER("y"),
             mark);
    json_decref(ask(MESSAGES, messages, 200));
    assert_int_equal(fake_last()->pin_count, 1);
    assert_int_equal(fake_last()->pins[0].position, position);
}

/* ---- billing lines ---- */

static void billing_lines_are_in_no_prompt(void **state) {
    (void)state;
#define BILLED "x-anthropic-billing-header: cc_version=2.1; cch=7;"
    static const struct {
        const char *path, *messages;
    } cases[] = {
        {CHAT, SAID("system", "'" BILLED "\\nBe brief.'")},
        {CHAT, SAID("system", "[{'type':'text','text':'" BILLED "'},{'type':'text','text':'Be brief.'}]")},
        {CHAT, SAID("system", "'" BILLED "'") "," SAID("system", "'Be brief.'")},
        {RESPONSES, SAID("system", "'" BILLED "\\nBe brief.'")},
        {RESPONSES, SAID("developer", "'" BILLED "'") "," SAID("system", "[{'type':'input_text','text':'Be brief.'}]")},
    };
    char messages[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(messages, sizeof messages, "%s," USER("x"), cases[i].messages);
        assert_prompt(cases[i].path, messages, TURN("system", "Be brief.") TURN("user", "x") REPLY);
    }
    static const char *const systems[] = {"\"" BILLED "\\nBe brief.\"",
                                          "[{\"type\":\"text\",\"text\":\"" BILLED
                                          "\"},{\"type\":\"text\",\"text\":\"Be brief.\"}]"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(messages, sizeof messages,
                 "{\"max_tokens\":9,\"system\":%s,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", systems[i]);
        json_decref(stage_want(&stage, "POST", MESSAGES, messages, 200));
        char *text = prompt_text();
        assert_string_equal(text, TURN("system", "Be brief.") TURN("user", "x") REPLY);
        free(text);
    }
    json_decref(
        stage_want(&stage, "POST", RESPONSES, "{\"instructions\":\"" BILLED "\\nBe brief.\",\"input\":\"x\"}", 200));
    char *text = prompt_text();
    assert_string_equal(text, TURN("system", "Be brief.") TURN("user", "x") REPLY);
    free(text);
    /* What a user writes about it is the user's. */
    assert_prompt(CHAT, USER(BILLED), TURN("user", BILLED) REPLY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_note_stands_for_what_is_no_text),
        cmocka_unit_test(text_comes_in_other_forms),
        cmocka_unit_test(notes_stand_wherever_content_does),
        cmocka_unit_test(blocks_of_other_services_are_left_out),
        cmocka_unit_test(messages_between_agents_are_the_users_side),
        cmocka_unit_test(warnings_say_what_was_not_shown),
        cmocka_unit_test(stored_items_have_the_note),
        cmocka_unit_test(messages_that_say_nothing_are_left_out),
        cmocka_unit_test(replies_and_results_may_be_empty),
        cmocka_unit_test(an_empty_message_ends_the_one_before),
        cmocka_unit_test(several_messages_of_the_assistant_are_complete),
        cmocka_unit_test(breakpoints_of_empty_messages_move),
        cmocka_unit_test(billing_lines_are_in_no_prompt),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
