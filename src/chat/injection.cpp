/* Text of a request stays text: what in it reads like a control token must not become one.
 *
 * Design. Before a template runs, a seam is put into each text of a special token that a client has sent: a few
 * characters, drawn at random, that are in no other text. Templates cut, join and quote what they are given, as JSON
 * too, and the seams go along with it, whatever way the prompt is made (the template's program, `common`, or code). In
 * the prompt the seams become guards, for which transcripts and tokenizer look (session/specials.h). What the template
 * prints itself has none, even where it prints the same.
 *
 * What the template does may make such a token of a text that is none: print something in front of it or behind it,
 * make capitals of it, or take words out of it. So seams also stand in a text that ends with the beginning of such a
 * token, or begins as one goes on; in what is one in other letters; and, where a text has a word in it that the
 * template takes out of texts, behind everything that a token may begin with. Where no token comes of it, the seam
 * leaves no guard.
 *
 * Which texts. Control tokens, everywhere. Markup, which are the template's words that are no control tokens
 * ("<tool_response>"), where others than client and model have a say: in messages of users, results and tools. A system
 * text may explain such words, and a reply of the assistant consists of them. The marks of thinking stay what they are
 * in the content of a reply, for templates take the thoughts out there.
 *
 * Invariants. A request without any such text is rendered as it is. With one, the prompt without its guards is the text
 * that would have been printed, but for templates that look for such a text themselves. */
#include "chat/chat_internal.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace {

constexpr size_t k_seam_characters = 3;
constexpr unsigned k_private_first = 0xE000, k_private_last = 0xF8FF; /* of the private use area */

/* Length of the character that begins with this byte. */
static size_t character_size(char first) {
    const unsigned char byte = static_cast<unsigned char>(first);
    return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/* Whether the template may print brackets around the names of members: it does not around those that it asks for by
 * name, and it has to find them. */
enum class framing { none, unless_asked_for, always };

/* Puts seams into texts of one kind. */
class seamer {
  public:
    seamer(const struct hearth_chat &owner, const struct hearth_specials *specials, bool markup)
        : chat(owner), seam(owner.seam), known(specials), with_markup(markup) {
    }

    /* A text that stays as it is: a mark of thinking, which is a token or begins with one ("<|channel>thought"). */
    void exempt(const char *text) {
        const std::string_view word = without_outer_space(text);
        size_t first = 0, other = 0;
        if (!word.empty() && (find(word, 0, false, first) > 0 || find(word, first, false, other) == word.size())) {
            exempt_words.push_back(word);
        }
    }

    /* False: the text has none of them. */
    bool sew(std::string_view text, std::string &out, framing name = framing::none) const {
        const std::string_view said = without_outer_space(text); /* as most templates do */
        const size_t lead = text.find(said), end = lead + said.size();
        const bool cut = std::any_of(chat.cut_words.begin(), chat.cut_words.end(), [said](const std::string &word) {
            return said.find(word) != std::string_view::npos;
        });
        size_t copied = 0;
        const auto put = [&](size_t at) {
            if (at > copied) {
                out.append(text, copied, at - copied);
                out += seam;
                copied = at;
            }
        };
        out.clear();
        if (continues(said, name)) {
            put(lead + character_size(said[0]));
        }
        for (size_t at = lead, matched; (at = find(text.substr(0, end), at, cut, matched)) < end; at++) {
            const size_t first = at + character_size(text[at]);
            const bool whole = matched > 0 && matched == first - at; /* of one character: nothing stands in it */
            if (whole || first > end || begins_with_one(exempt_words, text.substr(at)) ||
                (cut && matched == 0 && begins_with_one(chat.cut_words, text.substr(at)))) {
                continue; /* the template is to find them */
            }
            put(first);
        }
        out.append(text, copied);
        return copied > 0;
    }

    /* Null: the value has none of them. */
    json_ptr sew(const json_t *value, framing names) const {
        std::string text;
        if (json_is_string(value)) {
            return sew({json_string_value(value), json_string_length(value)}, text)
                       ? owned(json_stringn(text.data(), text.size()))
                       : nullptr;
        }
        json_ptr copy;
        const auto changed = [&copy, value]() {
            copy = copy != nullptr ? std::move(copy) : owned(json_copy(const_cast<json_t *>(value)));
            return copy.get();
        };
        for (size_t i = 0; i < json_array_size(value); i++) {
            json_ptr item = sew(json_array_get(value, i), names);
            if (item != nullptr) {
                check(json_array_set(changed(), i, item.get()));
            }
        }
        return json_is_object(value) ? sew_members(value, names) : std::move(copy);
    }

  private:
    const struct hearth_chat &chat;
    const std::string &seam;
    const struct hearth_specials *known;
    bool with_markup;
    std::vector<std::string_view> exempt_words;

    size_t find(std::string_view text, size_t from, bool any, size_t &matched) const {
        matched = 0;
        return hearth_specials_find(known, with_markup, any, text.data(), text.size(), from, &matched);
    }

    template <typename T> static bool begins_with_one(const std::vector<T> &words, std::string_view text) {
        return std::any_of(words.begin(), words.end(),
                           [text](std::string_view word) { return text.substr(0, word.size()) == word; });
    }

    bool continues(std::string_view text, framing name) const {
        const bool asked_for = std::binary_search(chat.members.begin(), chat.members.end(), text);
        const bool framed = name == framing::always || (name == framing::unless_asked_for && !asked_for);
        return hearth_specials_continues(known, framed, text.data(), text.size());
    }

    static void check(int status) {
        if (status < 0) {
            throw std::bad_alloc();
        }
    }

    static json_ptr owned(json_t *value) {
        check(value != nullptr ? 0 : -1);
        return json_ptr(value);
    }

    /* Keys are printed, too. The members keep their order. */
    json_ptr sew_members(const json_t *value, framing names) const {
        json_ptr copy = owned(json_object());
        bool any = false;
        const char *name;
        json_t *member;
        std::string key;
        json_object_foreach(const_cast<json_t *>(value), name, member) {
            const bool other_key = sew(name, key, names);
            json_ptr other = sew(member, names);
            any = any || other_key || other != nullptr;
            check(json_object_set(copy.get(), other_key ? key.c_str() : name, other != nullptr ? other.get() : member));
        }
        return any ? std::move(copy) : nullptr;
    }
};

/* Makes a request's copies. */
class copier {
  public:
    copier(guarded_request &request, const struct hearth_chat &chat) : out(request), rewrites(chat.rewrites) {
    }

    /* The text itself, or one of the store's with seams. */
    char *text(const seamer &seams, char *original, size_t len) {
        std::string sewn;
        if (original == nullptr || !seams.sew({original, len}, sewn)) {
            return original;
        }
        return out.store.emplace_back(std::move(sewn)).data();
    }

    char *text(const seamer &seams, char *original) {
        return text(seams, original, original != nullptr ? strlen(original) : 0);
    }

    /* `ids`: those of a call and of its result are the same text. */
    struct hearth_message *message(const seamer &seams, const seamer &thoughts, const seamer &ids,
                                   struct hearth_message *original) {
        struct hearth_message copy = {}; /* not *original, whose count of references others change */
        copy.role = original->role;
        copy.unseen = original->unseen;
        copy.call_count = original->call_count;
        copy.content = text(seams, original->content, original->content_len);
        const size_t len = copy.content == original->content ? original->content_len : out.store.back().size();
        copy.reasoning = text(thoughts, original->reasoning);
        copy.name = text(thoughts, original->name);
        copy.tool_call_id = text(ids, original->tool_call_id);
        copy.calls = calls(thoughts, ids, original->calls, original->call_count);
        if (copy.content == original->content && copy.reasoning == original->reasoning && copy.name == original->name &&
            copy.tool_call_id == original->tool_call_id && copy.calls == original->calls) {
            return original;
        }
        copy.content_len = len;
        return &out.copies.emplace_back(copy);
    }

    /* Null stays null. */
    const json_t *value(const seamer &seams, const json_t *original, framing names) {
        json_ptr sewn = original != nullptr ? seams.sew(original, names) : nullptr;
        if (sewn == nullptr) {
            return original;
        }
        return out.values.emplace_back(std::move(sewn)).get();
    }

  private:
    guarded_request &out;
    bool rewrites;

    struct hearth_call *calls(const seamer &seams, const seamer &ids, struct hearth_call *original, size_t count) {
        std::vector<struct hearth_call> copies(original, original + count);
        bool any = false;
        for (size_t i = 0; i < count; i++) {
            struct hearth_call &copy = copies[i];
            copy.id = text(ids, original[i].id);
            copy.name = text(seams, original[i].name);
            copy.arguments = text(seams, original[i].arguments);
            copy.parsed = const_cast<json_t *>(value(seams, original[i].parsed, framing::always));
            if (copy.parsed != original[i].parsed && rewrites) { /* `common` parses the text once more */
                copy.arguments = out.store.emplace_back(json_text(copy.parsed)).data();
            }
            any = any || copy.id != original[i].id || copy.name != original[i].name ||
                  copy.arguments != original[i].arguments || copy.parsed != original[i].parsed;
        }
        return any ? out.calls.emplace_back(std::move(copies)).data() : original;
    }
};

/* Where a seam stands at or behind `from`, and its length as it was printed. */
static size_t next_seam(std::string_view text, size_t from, const std::string &seam, const std::string &quoted,
                        size_t &quoted_at, size_t &size) {
    const size_t at = text.find(seam, from);
    if (quoted_at < from) {
        quoted_at = text.find(quoted, from);
    }
    size = at <= quoted_at ? seam.size() : quoted.size();
    return std::min(at, quoted_at);
}

/* Marks in a text that becomes shorter, each of them by itself. */
class marks {
  public:
    explicit marks(struct hearth_chat_prompt &prompt) {
        for (size_t i = 0; i < prompt.head_count; i++) {
            places.push_back(&prompt.head[i]);
        }
        for (size_t *at : {&prompt.system_end, &prompt.last_input_start, &prompt.generation_start}) {
            if (*at != HEARTH_CHAT_NO_MARK) {
                places.push_back(at);
            }
        }
        std::sort(places.begin(), places.end(), [](const size_t *a, const size_t *b) { return *a < *b; });
    }

    /* Text up to `end` of the old one has been printed, and is `moved` further forward. */
    void pass(size_t end, size_t moved) {
        for (; next < places.size() && *places[next] <= end; next++) {
            *places[next] -= std::min(*places[next], moved);
        }
    }

  private:
    std::vector<size_t *> places;
    size_t next = 0;
};

} // namespace

std::string make_seam() {
    std::random_device device;
    std::uniform_int_distribution<unsigned> any(k_private_first, k_private_last);
    std::string seam;
    for (size_t i = 0; i < k_seam_characters; i++) {
        const unsigned code = any(device);
        seam += static_cast<char>(0xE0 | code >> 12);
        seam += static_cast<char>(0x80 | (code >> 6 & 0x3F));
        seam += static_cast<char>(0x80 | (code & 0x3F));
    }
    return seam;
}

/* The seam as JSON without other characters than ASCII has it. */
std::string quoted_seam(const std::string &seam) {
    std::string text;
    for (size_t i = 0; i + 2 < seam.size(); i += 3) {
        const auto part = [&seam, i](size_t k) { return static_cast<unsigned>(seam[i + k]); };
        char code[8];
        snprintf(code, sizeof code, "\\u%04x", (part(0) & 0x0F) << 12 | (part(1) & 0x3F) << 6 | (part(2) & 0x3F));
        text += code;
    }
    return text;
}

guarded_request::guarded_request(const struct hearth_chat &chat, const struct hearth_chat_request &original,
                                 const struct hearth_chat_format &format)
    : request(original) {
    if (original.specials == nullptr) {
        return;
    }
    copier into(*this, chat);
    const seamer theirs(chat, original.specials, true), ours(chat, original.specials, false);
    seamer replies(chat, original.specials, false);
    replies.exempt(format.info.thinking_start);
    for (size_t i = 0; i < format.info.thinking_end_count; i++) {
        replies.exempt(format.info.thinking_ends[i]);
    }
    messages.reserve(original.message_count);
    for (size_t i = 0; i < original.message_count; i++) {
        struct hearth_message *message = original.messages[i];
        const bool reply = message->role == HEARTH_ROLE_ASSISTANT;
        const bool foreign = !reply && !is_system_role(message->role);
        messages.push_back(into.message(reply     ? replies
                                        : foreign ? theirs
                                                  : ours,
                                        foreign ? theirs : ours, theirs, message));
    }
    request.messages = messages.data();
    request.tools = into.value(theirs, original.tools, framing::unless_asked_for);
    request.kwargs = into.value(theirs, original.kwargs, framing::none);
}

size_t drop_seams(const struct hearth_chat &chat, char *text, size_t len) {
    const auto size_at = [&](size_t at) -> size_t {
        const size_t room = len - at, size = std::min(chat.seam.size(), room); /* the last one may have been cut off */
        if (size > 0 && memcmp(chat.seam.data(), text + at, size) == 0) {
            return size;
        }
        const std::string &quoted = chat.quoted_seam;
        return room >= quoted.size() && memcmp(quoted.data(), text + at, quoted.size()) == 0 ? quoted.size() : 0;
    };
    size_t n = 0;
    for (size_t at = 0; at < len;) {
        const size_t size = size_at(at);
        if (size == 0) {
            text[n++] = text[at];
        }
        at += std::max(size, size_t{1});
    }
    return n;
}

void place_guards(const struct hearth_chat &chat, const struct hearth_specials *specials,
                  struct hearth_chat_prompt &prompt) {
    const std::string_view text(reinterpret_cast<const char *>(prompt.text.data), prompt.text.len);
    const std::string &quoted = chat.quoted_seam;
    size_t quoted_at = text.find(quoted), size = 0, from = 0;
    std::string plain;
    std::vector<size_t> seams; /* in `plain` */
    std::vector<size_t> ends;  /* of the text in front of each, in `text` */
    for (size_t at; (at = next_seam(text, from, chat.seam, quoted, quoted_at, size)) != text.npos; from = at + size) {
        plain.append(text, from, at - from);
        seams.push_back(plain.size());
        ends.push_back(at);
    }
    if (seams.empty()) {
        return;
    }
    plain.append(text, from);
    marks places(prompt);
    std::string guarded;
    size_t copied = 0;
    for (size_t i = 0; i < seams.size(); i++) {
        guarded.append(plain, copied, seams[i] - copied);
        places.pass(ends[i], ends[i] - guarded.size());
        copied = seams[i];
        if (hearth_specials_spans(specials, plain.data(), plain.size(), seams[i])) {
            guarded += static_cast<char>(HEARTH_GUARD);
        }
    }
    guarded.append(plain, copied);
    places.pass(text.size(), text.size() - guarded.size());
    memcpy(prompt.text.data, guarded.c_str(), guarded.size() + 1);
    prompt.text.len = guarded.size();
}
