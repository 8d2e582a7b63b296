/* What a JSON schema may ask of llama.cpp's grammar builder.
 *
 * Design. The builder trusts its input: it recurses as deep as a schema nests, copies a schema once for each entry of a
 * list of types, follows references that lead nowhere, and takes time with the cube of the optional properties of an
 * object. Parsers of calls look for the types of a property in all its choices, which references may double at each
 * step. The walk here visits what the builder would visit and refuses what would take it too far. Whether a schema
 * means what its author thinks is schema.c's business.
 *
 * Invariants. The walk is bounded itself: by depth, and by budgets of visits and choices. */
#include "chat/chat_internal.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr size_t k_depth = 64;
constexpr size_t k_visits = 20000;
constexpr size_t k_properties = 256;
constexpr size_t k_repeats = 2000;   /* what a rule of a grammar may repeat */
constexpr size_t k_references = 32;  /* that lead to references */
constexpr size_t k_choices = 300000; /* that all references lead to */
constexpr size_t k_name = 4096;      /* bytes of a property's name */
constexpr size_t k_names = 8 << 20;  /* of those in front of each schema, which names of rules repeat */
constexpr double k_largest = 9.2e18; /* a bound beyond does not fit what the builder keeps it in */

struct schema_walk {
    const json_t *root;
    std::string where;
    size_t visits = 0, choices = 0;
    size_t path = 0, names = 0;             /* bytes of the names on the way to a schema, and of all of these */
    std::vector<const json_t *> trail = {}; /* what the references on the way to a choice lead to */

    [[noreturn]] void refuse(const std::string &why) const {
        throw invalid_request(where + ": " + why);
    }

    void spend(size_t times) {
        poll_cancel();
        visits += times;
        if (visits > k_visits) {
            refuse("the schema is too large");
        }
    }

    /* A value of any kind, such as stands in an enum. */
    void value(const json_t *source, size_t depth) {
        spend(1);
        if (depth > k_depth) {
            refuse("the schema is nested too deeply");
        }
        for (size_t i = 0; json_is_array(source) && i < json_array_size(source); i++) {
            value(json_array_get(source, i), depth + 1);
        }
        if (json_is_object(source)) {
            const char *name;
            json_t *member;
            json_object_foreach(const_cast<json_t *>(source), name, member) {
                value(member, depth + 1);
            }
        }
    }

    void counts(const json_t *schema) const {
        for (const char *name : {"minItems", "maxItems", "minLength", "maxLength"}) {
            const json_t *count = json_object_get(schema, name);
            if (count == nullptr) {
                continue;
            }
            if (!json_is_integer(count) || json_integer_value(count) < 0) {
                refuse(std::string(name) + " must be a non-negative integer");
            }
            if (json_integer_value(count) > static_cast<json_int_t>(k_repeats)) {
                refuse(std::string(name) + " must be at most " + std::to_string(k_repeats));
            }
        }
        for (const auto &pair : {std::make_pair("minItems", "maxItems"), std::make_pair("minLength", "maxLength")}) {
            const json_t *most = json_object_get(schema, pair.second);
            if (most != nullptr && json_integer_value(json_object_get(schema, pair.first)) > json_integer_value(most)) {
                refuse(std::string(pair.first) + " is larger than " + pair.second);
            }
        }
        for (const char *name : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
            const json_t *bound = json_object_get(schema, name);
            const json_t *type = json_object_get(schema, "type");
            if (!json_is_number(bound) || (json_is_string(type) && strcmp(json_string_value(type), "number") == 0)) {
                continue;
            }
            if (!(std::fabs(json_number_value(bound)) < k_largest)) {
                refuse(std::string(name) + " is too large");
            }
        }
        if (json_object_size(json_object_get(schema, "properties")) > k_properties) {
            refuse("more than " + std::to_string(k_properties) + " properties");
        }
    }

    /* The schema that a reference within the document leads to; null: none. An index has no zeros in front: the builder
     * makes what references lead to once for each way to write them. */
    const json_t *target(const char *reference) const {
        if (strncmp(reference, "#/", 2) != 0) {
            return nullptr;
        }
        const json_t *at = root;
        std::string_view rest(reference + 2);
        while (at != nullptr && !rest.empty()) {
            const size_t end = rest.find('/');
            const std::string part(rest.substr(0, end));
            rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
            const bool digits = part == "0" || (!part.empty() && part.size() < 9 && part[0] != '0' &&
                                                part.find_first_not_of("0123456789") == part.npos);
            at = json_is_array(at) ? (digits ? json_array_get(at, std::stoul(part)) : nullptr)
                                   : json_object_get(at, part.c_str());
        }
        return at;
    }

    void references(const json_t *schema) const {
        size_t steps = 0;
        const json_t *at = schema;
        for (const char *name; (name = json_string_value(json_object_get(at, "$ref"))) != nullptr;) {
            if (strlen(name) > k_depth * k_name) {
                refuse("a $ref is too long");
            }
            at = target(name);
            if (at == nullptr) {
                refuse("$ref \"" + std::string(name) + "\" leads nowhere in the schema");
            }
            if (++steps > k_references) {
                refuse("$ref \"" + std::string(name) + "\" leads in a circle");
            }
        }
    }

    /* `common` looks for the types of a property in all that it may be, and follows each reference anew wherever it
     * stands, but for one that is being followed. */
    void choice(const json_t *source) {
        const char *reference = json_string_value(json_object_get(source, "$ref"));
        const json_t *at = reference != nullptr ? target(reference) : nullptr;
        poll_cancel();
        if (++choices > k_choices) {
            refuse("$ref leads to too many choices");
        }
        if (at != nullptr && std::find(trail.begin(), trail.end(), at) == trail.end()) {
            trail.push_back(at);
            choice(at);
            trail.pop_back();
        }
        for (const char *name : {"anyOf", "oneOf", "allOf"}) {
            const json_t *list = json_object_get(source, name);
            for (size_t i = 0; i < json_array_size(list); i++) {
                choice(json_array_get(list, i));
            }
        }
    }

    /* Schemas by name: the names are the client's, and mean nothing. */
    void named(const json_t *map, size_t depth, size_t times) {
        const char *name;
        json_t *member;
        json_object_foreach(const_cast<json_t *>(map), name, member) {
            const size_t len = strlen(name);
            if (len > k_name) {
                refuse("a name of more than " + std::to_string(k_name) + " bytes");
            }
            path += len;
            schema(member, depth, times);
            path -= len;
        }
    }

    /* `times`: how many copies of it the builder makes. What a schema holds under a word that is not known is walked as
     * if it were one. */
    void schema(const json_t *source, size_t depth, size_t times) {
        spend(times);
        names += path * times;
        if (names > k_names) {
            refuse("the names of its properties are too long");
        }
        if (depth > k_depth) {
            refuse("the schema is nested too deeply");
        }
        for (size_t i = 0; json_is_array(source) && i < json_array_size(source); i++) {
            schema(json_array_get(source, i), depth + 1, times);
        }
        if (!json_is_object(source)) {
            return;
        }
        counts(source);
        references(source);
        if (json_object_get(source, "$ref") != nullptr) {
            choice(source);
        }
        const json_t *types = json_object_get(source, "type");
        const size_t copies = json_is_array(types) ? times * std::max<size_t>(json_array_size(types), 1) : times;
        if (copies > k_visits) {
            refuse("the schema is too large");
        }
        const char *name;
        json_t *member;
        json_object_foreach(const_cast<json_t *>(source), name, member) {
            const bool data = strcmp(name, "enum") == 0 || strcmp(name, "const") == 0 || strcmp(name, "default") == 0 ||
                              strcmp(name, "examples") == 0;
            const bool map =
                json_is_object(member) &&
                (strcmp(name, "properties") == 0 || strcmp(name, "$defs") == 0 || strcmp(name, "definitions") == 0 ||
                 strcmp(name, "patternProperties") == 0 || strcmp(name, "dependentSchemas") == 0);
            if (data) {
                value(member, depth + 1);
            } else if (map) {
                named(member, depth + 1, copies);
            } else {
                schema(member, depth + 1, copies);
            }
        }
    }
};

} // namespace

void check_limits(const json_t *schema, const std::string &where) {
    schema_walk all{schema, where};
    all.schema(schema, 0, 1);
}
