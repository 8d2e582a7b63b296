/* Folders of the user's own. */
#ifndef HEARTH_BASE_FOLDER_H
#define HEARTH_BASE_FOLDER_H

/* Makes a folder and those above it that are missing, with rights for the user alone (0700); one that is there stays as
 * it is. Errors: IO with errno. Threads: any. */
int hearth_folder_make(const char *path);
/* The same for the folder that a file is to be in. */
int hearth_folder_make_parent(const char *path);

#endif
