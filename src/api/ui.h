/* The page at GET /: the files of src/ui, which are part of the program. */
#ifndef HEARTH_API_UI_H
#define HEARTH_API_UI_H

#include <stddef.h>

struct hearth_ui_file {
    const char *path, *content_type, *etag; /* the tag with its quotes */
    const unsigned char *bytes;
    size_t len;
};

/* Made by src/ui/embed.py. */
extern const struct hearth_ui_file hearth_ui_files[];
extern const size_t hearth_ui_file_count;

#endif
