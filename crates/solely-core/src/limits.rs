//! Every bound that callers meet, in one place. What bounds only one module is a named constant
//! of that module.

use std::time::Duration;

/// Keys of one lease.
pub const LEASE_KEYS_MAX: usize = 64;
/// Bytes of one key (of a lease, a job, an entry) and of a lease's owner.
pub const KEY_BYTES_MAX: usize = 512;
/// The shortest and the longest life of a lease.
pub const LEASE_TTL_MIN: Duration = Duration::from_millis(100);
/// See [`LEASE_TTL_MIN`].
pub const LEASE_TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest that a caller may wait for a lease.
pub const LEASE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Callers that may wait for leases in one process.
pub const LEASE_WAITERS_MAX: usize = 10_000;
/// A waiter looks again at least this often, should its wake-up be lost.
pub const LEASE_POLL: Duration = Duration::from_secs(1);

/// Bytes of one job's payload and attributes together.
pub const JOB_PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Jobs of one enqueue.
pub const ENQUEUE_BATCH_MAX: usize = 1_000;
/// Jobs of one claim, and commits of one settlement.
pub const CLAIM_BATCH_MAX: usize = 256;
/// The least urgent priority; 0 is the most urgent.
pub const PRIORITY_LAST: u8 = 9;
/// The priority of a job that does not say.
pub const PRIORITY_DEFAULT: u8 = 5;
/// Deliveries of a job that does not say.
pub const JOB_ATTEMPTS: u32 = 5;
/// Deliveries a job may ask for.
pub const JOB_ATTEMPTS_MAX: u32 = 10_000;
/// Bytes of an error kept with a job.
pub const ERROR_BYTES_MAX: usize = 2_000;
/// Dead letters looked at by one redrive.
pub const REDRIVE_MAX: u32 = 10_000;

/// A worker looks for jobs at least this often, should a wake-up be lost.
pub const WORKER_POLL: Duration = Duration::from_secs(2);
/// Between two heartbeats.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A process that has not beaten for this long is dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(5);
/// Between two looks for jobs whose worker is gone.
pub const RESCUE_EVERY: Duration = Duration::from_secs(1);
/// How long a rescuer holds a job that it dead-letters.
pub const RESCUE_LOCK: Duration = Duration::from_secs(30);
/// Between two rounds of pruning.
pub const PRUNE_EVERY: Duration = Duration::from_secs(30);
/// How long what was decided for an idempotency key is remembered.
pub const IDEMPOTENCY_KEYS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Rows that one pruning transaction may delete, per table.
pub const PRUNE_BATCH: u32 = 500;

/// The longest that an upstream's `Retry-After` is honoured.
pub const UPSTREAM_PAUSE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Requests under way in one process that does not say; one more is refused.
pub const REQUESTS_MAX: usize = 4_096;
/// Connections to one process; one more is closed.
pub const CONNECTIONS_MAX: usize = 16_384;
/// Sockets of one process; one more is refused.
pub const SOCKETS_MAX: usize = 10_000;
/// Bytes of one message of a socket.
pub const SOCKET_MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Between two pings of a socket; three without a word from the client end it.
pub const SOCKET_PULSE: Duration = Duration::from_secs(20);
/// How long a client may take to send a request's header, and leave a connection idle before it.
pub const HEADER_TIME: Duration = Duration::from_secs(60);
/// How long a client may pause in the middle of a body.
pub const BODY_PAUSE_MAX: Duration = Duration::from_secs(10);
/// Requests of one caller a second,
pub const CALLER_RATE: u32 = 2_000;
/// and at once.
pub const CALLER_BURST: u32 = 4_000;

/// How long a key is believed to be what it was: a revoked one stops within this time.
pub const KEY_TRUST: Duration = Duration::from_secs(3);
/// Keys that a process remembers.
pub const KEYS_KNOWN_MAX: usize = 10_000;
/// How long a ticket can be used.
pub const TICKET_TTL: Duration = Duration::from_secs(60);
/// Bytes of a key's name.
pub const KEY_NAME_BYTES_MAX: usize = 128;

/// A copy of an entry in memory is trusted for at most this long after it was known to be true.
pub const MEMORY_TRUST: Duration = Duration::from_secs(30);
/// Copies in a companion are trusted for at most this long after they were known to be true.
pub const COPIES_TRUST: Duration = Duration::from_secs(10);
/// Bytes of entries held in memory.
pub const MEMORY_BYTES: u64 = 64 * 1024 * 1024;
/// Changed entries that a process has yet to tell of; beyond that it tells that anything may have
/// changed.
pub const CHANGED_MAX: usize = 10_000;
/// How long it stays known that an entry was forgotten.
pub const FORGOTTEN_FOR: Duration = Duration::from_secs(60 * 60);
/// Keys of one read of entries.
pub const ENTRIES_BATCH: usize = 500;
/// Keys that one watch may have.
pub const WATCH_KEYS_MAX: usize = 1_000;
/// Keys that are watched in one process.
pub const WATCHED_MAX: usize = 200_000;
/// Watched entries are read at least this often, should a wake-up be lost.
pub const WATCH_POLL: Duration = Duration::from_secs(2);
/// Notes that a bus has yet to send; beyond that it sends that anything may have happened.
pub const NOTES_MAX: usize = 10_000;

/// Results of one request for links.
pub const RESULTS_MAX: usize = 200;
/// Places of one request, each as often as there are providers that are asked.
pub const STATES_MAX: usize = 1_000;
/// Bytes of the name, the address and the city of a place.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of a link.
pub const LINK_BYTES_MAX: usize = 2_048;
/// Places that are warmed at once.
pub const WARM_MAX: usize = 500;
/// Subscriptions of one socket.
pub const SUBSCRIPTIONS_MAX: usize = 100;
/// Messages that a socket may leave unread; one more closes it.
pub const SOCKET_UNREAD_MAX: usize = 1_024;

/// Between two looks at what dashboards are shown, while somebody looks.
pub const DASHBOARD_EVERY: Duration = Duration::from_secs(1);
/// Sockets that follow the dashboard in one process; one more is refused.
pub const DASHBOARDS_MAX: usize = 200;
/// Looks that are remembered for whoever opens a dashboard next.
pub const DASHBOARD_HISTORY: usize = 300;
/// Things of one list that a dashboard is shown.
pub const DASHBOARD_ITEMS: u32 = 100;
/// How long a browser stays logged in.
pub const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);

/// Partitions of one run.
pub const PARTITIONS_MAX: usize = 1_000;
/// Records of one page of a source that does not say less.
pub const FEED_PAGE_MAX: u32 = 1_000;
/// Records of one partition.
pub const PARTITION_RECORDS_MAX: u64 = 100_000_000;
/// Bytes of a record's id and of a partition's.
pub const RECORD_ID_BYTES_MAX: usize = 256;
/// Bytes of one answer of an upstream.
pub const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Records that one step of a consolidation looks at.
pub const CONSOLIDATE_BATCH: u32 = 2_000;
/// Records that a stream reads at once.
pub const STREAM_BATCH: u32 = 1_000;
/// How long a stream of records may take; what it reads is kept for as long.
pub const STREAM_TIME: Duration = Duration::from_secs(60 * 60);
/// Streams of one process; one more is refused.
pub const STREAMS_MAX: usize = 64;

/// Items of a page of a listing, and of one that does not say.
pub const PAGE_MAX: u32 = 200;
/// See [`PAGE_MAX`].
pub const PAGE_DEFAULT: u32 = 50;

/// Commands waiting for the embedded store's writer; one more is refused.
pub const WRITER_QUEUE: usize = 8_192;
/// Housekeeping commands waiting for it.
pub const WRITER_HOUSEKEEPING_QUEUE: usize = 64;
/// Commands that share one commit.
pub const WRITER_BATCH: usize = 512;
/// Reads waiting for the embedded store's readers; one more is refused.
pub const READER_QUEUE: usize = 1_024;
/// Connections of the embedded store that only read.
pub const READERS: usize = 2;
