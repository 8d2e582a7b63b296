/* Lists for people: rows of text in columns that are as wide as their widest cell, with free text behind them. */
#ifndef HEARTH_CONSOLE_TABLE_H
#define HEARTH_CONSOLE_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#define HEARTH_SHOW_TABLE_COLUMNS 12

struct hearth_show_column {
    const char *title; /* NULL: the column is left out */
    bool left;         /* cells begin at its left edge */
    int most;          /* columns of the terminal for a cell; 0: what it needs */
};

struct hearth_show_table {
    const struct hearth_show_column *columns; /* borrowed */
    size_t column_count;
    const char *indent; /* before each row */
    struct hearth_show_cell {
        char *text;
        int width;
    } *cells; /* row by row */
    size_t cell_count, cell_room;
    int widths[HEARTH_SHOW_TABLE_COLUMNS];
};

void hearth_show_table_init(struct hearth_show_table *table, const struct hearth_show_column *columns, size_t count,
                            const char *indent);
/* Adds a row with a cell for each column. Cells may be text of others: a terminal obeys nothing in them. False: out of
 * memory. */
bool hearth_show_table_add(struct hearth_show_table *table, const char *const cells[]);
/* Prints the titles, with that of the free text. */
void hearth_show_table_head(const struct hearth_show_table *table, const char *last_title);
/* Prints a row without its end. Returns how many columns of the terminal are left for the free text. */
int hearth_show_table_row(const struct hearth_show_table *table, size_t row);
void hearth_show_table_finish(struct hearth_show_table *table);

#endif
