#include <pthread.h>

#include "kernels.h"

/* More are of no use to one pass. */
#define MOST 256

struct job {
    void (*run)(void *);
    void *given;
};

static void *begin(void *job) {
    ((struct job *)job)->run(((struct job *)job)->given);
    return 0;
}

void addnorm_share(parallel *start, int64_t threads, void (*run)(void *), void *given) {
    struct job job = {run, given};
    pthread_t others[MOST];
    int64_t count = 0;
    if (threads > 1 && start) {
        start(run, given, (unsigned)threads, 0);
        return;
    }
    while (count < threads - 1 && count < MOST && !pthread_create(others + count, 0, begin, &job)) count++;
    run(given);
    while (count > 0) pthread_join(others[--count], 0);
}
