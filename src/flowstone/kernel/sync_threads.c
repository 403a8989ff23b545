/* Threads that make files durable and never touch the interpreter.
 *
 * A Python thread that waits in fdatasync has to take the GIL back from a busy loop before it can say so: a handful of
 * futex calls and context switches for every flush. These threads take a job, a few descriptors, from one list, put the
 * outcome on another, and write to `wake_descriptor`, which the event loop watches, when that second list was empty.
 *
 * The caller keeps a descriptor open until its outcome was taken. An outcome is a ticket of the caller's and an errno, 0
 * for success; nothing is tried again. The lists hold what was submitted and not yet taken: the caller bounds that.
 *
 * The number of threads can change at any time. Surplus threads end after the job that they do; the jobs that wait are
 * left to the others. One thread of the caller's makes all calls.
 */

#define _GNU_SOURCE /* sync_file_range, where there is one */

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct job {
    struct job *next;
    int64_t ticket, error, count;
    int64_t descriptors[];
};

struct list {
    struct job *first, **end;
};

struct thread {
    struct thread *next;
    struct sync_threads *owner;
    pthread_t id;
    int has_ended;
};

struct sync_threads {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct list waiting, done;
    int stopping, wake_descriptor;
    int64_t wanted_count, running_count;
    struct thread *threads; /* to be joined: only the caller uses this list */
};

struct outcome {
    int64_t ticket, error;
};

static void clear(struct list *list) {
    list->first = NULL;
    list->end = &list->first;
}

static void append(struct list *list, struct job *job) {
    job->next = NULL;
    *list->end = job;
    list->end = &job->next;
}

static struct job *pop(struct list *list) {
    struct job *job = list->first;
    if (job != NULL && (list->first = job->next) == NULL)
        list->end = &list->first;
    return job;
}

static int sync_descriptor(int descriptor) {
#ifdef F_FULLFSYNC
    return fcntl(descriptor, F_FULLFSYNC) == -1 ? errno : 0;
#else
    return fdatasync(descriptor) == -1 ? errno : 0;
#endif
}

/* Several files: their bytes are all on the way to the disk before the first one is waited for. */
static int sync_all(const int64_t *descriptors, int64_t count) {
    int error = 0;
#ifdef SYNC_FILE_RANGE_WRITE
    for (int64_t index = 0; index < count && count > 1; index++)
        sync_file_range((int)descriptors[index], 0, 0, SYNC_FILE_RANGE_WRITE); /* what fails here fails below */
#endif
    for (int64_t index = 0; index < count && error == 0; index++)
        error = sync_descriptor((int)descriptors[index]);
    return error;
}

static void wake(int descriptor) {
    const uint64_t one = 1;
    while (write(descriptor, &one, sizeof one) == -1 && errno == EINTR)
        ; /* a full pipe wakes its reader anyway */
}

static void *work(void *argument) {
    struct thread *self = argument;
    struct sync_threads *threads = self->owner;
    pthread_mutex_lock(&threads->lock);
    while (threads->running_count <= threads->wanted_count) {
        struct job *job = pop(&threads->waiting);
        if (job == NULL) {
            if (threads->stopping)
                break;
            pthread_cond_wait(&threads->work, &threads->lock);
            continue;
        }
        pthread_mutex_unlock(&threads->lock);
        const int error = sync_all(job->descriptors, job->count);
        pthread_mutex_lock(&threads->lock);
        job->error = error;
        const int is_first = threads->done.first == NULL;
        append(&threads->done, job);
        if (is_first) {
            pthread_mutex_unlock(&threads->lock);
            wake(threads->wake_descriptor);
            pthread_mutex_lock(&threads->lock);
        }
    }
    threads->running_count--;
    self->has_ended = 1;
    pthread_mutex_unlock(&threads->lock);
    return NULL;
}

/* Called with the lock held: the new thread waits for it. 0 if no thread starts. */
static int start_thread(struct sync_threads *threads) {
    struct thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL)
        return 0;
    thread->owner = threads;
    if (pthread_create(&thread->id, NULL, work, thread) != 0) {
        free(thread);
        return 0;
    }
    thread->next = threads->threads;
    threads->threads = thread;
    threads->running_count++;
    return 1;
}

/* Joins the threads that have ended, which does not block, or all of them. Called without the lock. */
static void join_threads(struct sync_threads *threads, int all) {
    struct thread **link = &threads->threads;
    while (*link != NULL) {
        struct thread *thread = *link;
        pthread_mutex_lock(&threads->lock);
        const int has_ended = thread->has_ended;
        pthread_mutex_unlock(&threads->lock);
        if (!has_ended && !all) {
            link = &thread->next;
            continue;
        }
        *link = thread->next;
        pthread_join(thread->id, NULL);
        free(thread);
    }
}

/* How many threads run now: fewer than wanted if no more start, more until surplus ones have ended. */
int64_t flowstone_sync_threads_resize(struct sync_threads *threads, int64_t thread_count) {
    join_threads(threads, 0);
    /* Signals are the interpreter's business: its main thread must get them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&threads->lock);
    threads->wanted_count = thread_count;
    while (threads->running_count < thread_count && start_thread(threads))
        ;
    const int64_t running_count = threads->running_count;
    /* All of them look again: the signal for a job is never lost with a thread that ends. */
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return running_count;
}

/* Every job submitted before is done when this returns; the outcomes can still be taken. */
void flowstone_sync_threads_stop(struct sync_threads *threads) {
    pthread_mutex_lock(&threads->lock);
    threads->stopping = 1;
    pthread_cond_broadcast(&threads->work);
    pthread_mutex_unlock(&threads->lock);
    join_threads(threads, 1);
}

/* After stop, with every outcome taken. */
void flowstone_sync_threads_free(struct sync_threads *threads) {
    pthread_cond_destroy(&threads->work);
    pthread_mutex_destroy(&threads->lock);
    free(threads);
}

/* NULL if there is no memory or a thread does not start. */
struct sync_threads *flowstone_sync_threads_start(int64_t thread_count, int64_t wake_descriptor) {
    struct sync_threads *threads = calloc(1, sizeof *threads);
    if (threads == NULL)
        return NULL;
    pthread_mutex_init(&threads->lock, NULL);
    pthread_cond_init(&threads->work, NULL);
    clear(&threads->waiting);
    clear(&threads->done);
    threads->wake_descriptor = (int)wake_descriptor;
    if (flowstone_sync_threads_resize(threads, thread_count) < thread_count) {
        flowstone_sync_threads_stop(threads);
        flowstone_sync_threads_free(threads);
        return NULL;
    }
    return threads;
}

/* 0, or ENOMEM and nothing has happened. */
int64_t flowstone_sync_threads_submit(struct sync_threads *threads, const int64_t *descriptors, int64_t count, int64_t ticket) {
    const size_t descriptors_bytes = (size_t)count * sizeof *descriptors;
    struct job *job = malloc(sizeof *job + descriptors_bytes);
    if (job == NULL)
        return ENOMEM;
    *job = (struct job){.ticket = ticket, .count = count};
    memcpy(job->descriptors, descriptors, descriptors_bytes);
    pthread_mutex_lock(&threads->lock);
    append(&threads->waiting, job);
    pthread_mutex_unlock(&threads->lock);
    pthread_cond_signal(&threads->work); /* not before: who wakes up takes the lock at once */
    return 0;
}

/* Takes up to `outcomes_max` outcomes; how many there were. */
int64_t flowstone_sync_threads_take(struct sync_threads *threads, struct outcome *outcomes, int64_t outcomes_max) {
    struct list taken;
    int64_t count = 0;
    clear(&taken);
    pthread_mutex_lock(&threads->lock);
    while (count < outcomes_max && threads->done.first != NULL) {
        append(&taken, pop(&threads->done));
        count++;
    }
    pthread_mutex_unlock(&threads->lock);
    for (int64_t index = 0; index < count; index++) {
        struct job *job = pop(&taken);
        outcomes[index] = (struct outcome){job->ticket, job->error};
        free(job);
    }
    return count;
}
