/* See table.h. Cells are sanitized when they are added, so that their width is known before the first row is printed.
 */
#include "console/table.h"

#include "base/assert.h"
#include "console/show.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void hearth_show_table_init(struct hearth_show_table *table, const struct hearth_show_column *columns, size_t count,
                            const char *indent) {
    HEARTH_ASSERT(count <= HEARTH_SHOW_TABLE_COLUMNS);
    *table = (struct hearth_show_table){.columns = columns, .column_count = count, .indent = indent};
    for (size_t i = 0; i < count; i++) {
        table->widths[i] = columns[i].title ? (int)strlen(columns[i].title) : 0;
    }
}

bool hearth_show_table_add(struct hearth_show_table *table, const char *const cells[]) {
    const size_t count = table->cell_count + table->column_count;
    if (count > table->cell_room) {
        const size_t room = 2 * count;
        struct hearth_show_cell *more = realloc(table->cells, room * sizeof *more);
        if (!more) {
            return false;
        }
        table->cells = more;
        table->cell_room = room;
    }
    for (size_t i = 0; i < table->column_count; i++) {
        struct hearth_show_cell *cell = &table->cells[table->cell_count];
        size_t len;
        FILE *memory = open_memstream(&cell->text, &len);
        if (!memory) {
            return false;
        }
        cell->width = hearth_show_text(memory, cells[i], table->columns[i].most > 0 ? table->columns[i].most : INT_MAX);
        table->widths[i] = cell->width > table->widths[i] ? cell->width : table->widths[i];
        (void)fclose(memory);
        if (!cell->text) {
            return false;
        }
        table->cell_count++;
    }
    return true;
}

static int print_cell(const struct hearth_show_table *table, size_t column, const char *text, int width) {
    if (!table->columns[column].title) {
        return 0;
    }
    const int gap = table->widths[column] - width;
    const bool left = table->columns[column].left;
    (void)printf("%*s%s%*s  ", left ? 0 : gap, "", text, left ? gap : 0, "");
    return table->widths[column] + 2;
}

void hearth_show_table_head(const struct hearth_show_table *table, const char *last_title) {
    (void)fputs(table->indent, stdout);
    for (size_t i = 0; i < table->column_count; i++) {
        const char *title = table->columns[i].title;
        (void)print_cell(table, i, title, title ? (int)strlen(title) : 0);
    }
    (void)printf("%s\n", last_title);
}

int hearth_show_table_row(const struct hearth_show_table *table, size_t row) {
    int used = printf("%s", table->indent);
    for (size_t i = 0; i < table->column_count; i++) {
        const struct hearth_show_cell *cell = &table->cells[row * table->column_count + i];
        used += print_cell(table, i, cell->text, cell->width);
    }
    return hearth_show_columns() - used;
}

void hearth_show_table_finish(struct hearth_show_table *table) {
    for (size_t i = 0; i < table->cell_count; i++) {
        free(table->cells[i].text);
    }
    free(table->cells);
}
