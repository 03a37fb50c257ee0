/* Work on several threads of PyTorch's own OpenMP, whose threads are there already and would be in the way of others. */
#pragma once

typedef void parallel(void (*run)(void *), void *given, unsigned threads, unsigned flags);

/* `start`: OpenMP's function that runs another on several threads, or NULL for this one only. */
static inline void share(parallel *start, unsigned threads, void (*run)(void *), void *given) {
    if (start && threads > 1)
        start(run, given, threads, 0);
    else
        run(given);
}
