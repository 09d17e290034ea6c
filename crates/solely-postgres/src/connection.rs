//! Connections: a bounded pool, and a breaker for when the database is away.
//!
//! Whoever finds that no connection can be made opens the breaker, and so does a heartbeat that
//! is not answered: from then on callers are told at once instead of waiting each for their own
//! refusal, those that wait for an answer give up, and one task keeps knocking. The first answer
//! that it gets closes the breaker again.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType,
};
use solely_core::away::Away;
use solely_core::{Clock, StoreError};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{is_shutdown, store_error};
use crate::tls::Tls;

/// How a process talks to the database. Clones share it.
#[derive(Clone)]
pub(crate) struct Connections {
    pool: Pool,
    pub(crate) clock: Clock,
    /// How long the client waits for what it asked; the server gives up before.
    pub(crate) patience: Duration,
    /// Why the database is away, if it is.
    away: Arc<watch::Sender<Option<String>>>,
    /// When it was found to be back the last time.
    back: Arc<watch::Sender<Instant>>,
    /// Which life of the database the newest connection was made in.
    life: Arc<watch::Sender<String>>,
}

/// How connections are made.
pub(crate) struct Making<'a> {
    pub(crate) config: &'a tokio_postgres::Config,
    pub(crate) tls: &'a Tls,
    pub(crate) most: usize,
    pub(crate) statement_timeout: Duration,
    pub(crate) clock: &'a Clock,
}

/// Every hot statement finds its rows by a key, and its plan must stay so however small the
/// tables were when it was made: whole-table and whole-index ways are never taken where there is
/// another, and a statement is planned once.
const PLANNING: &str = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off \
                        -c enable_mergejoin=off -c enable_material=off -c jit=off \
                        -c plan_cache_mode=force_generic_plan";

/// Whoever has a lock sees what was committed before it had it, whatever the database's default is.
const ISOLATION: &str = r"-c default_transaction_isolation=read\ committed";

/// A process that is paused or cut off in the middle of a transaction does not keep its locks.
const ABANDONED: &str = "-c idle_in_transaction_session_timeout=5000 -c tcp_keepalives_idle=15 \
                         -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=15000";

/// How long a silent connection is believed in.
pub(crate) fn impatient(config: &mut tokio_postgres::Config) {
    config.connect_timeout(CONNECT_TIMEOUT);
    config.tcp_user_timeout(TCP_TIMEOUT);
    config.keepalives_idle(TCP_TIMEOUT);
}

impl Connections {
    pub(crate) fn new(making: &Making<'_>) -> Result<Self, StoreError> {
        let mut config = making.config.clone();
        let given = config.get_options().unwrap_or_default().to_owned();
        let timeout_ms = making.statement_timeout.as_millis();
        config.options(format!(
            "{given} -c statement_timeout={timeout_ms} -c client_min_messages=warning {ISOLATION} {ABANDONED} {PLANNING}"
        ));
        impatient(&mut config);
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let life = Arc::new(watch::Sender::new(String::new()));
        let pool = Pool::builder(making.tls.manager(config, recycling))
            .post_create(learn_life(life.clone()))
            .max_size(making.most)
            .wait_timeout(Some(POOL_TIMEOUT))
            .create_timeout(Some(CONNECT_TIMEOUT))
            .runtime(Runtime::Tokio1)
            .build()
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        let (clock, patience) = (making.clock.clone(), making.statement_timeout + CONNECT_TIMEOUT);
        let (away, back) = (watch::Sender::new(None), watch::Sender::new(Instant::now()));
        Ok(Self { pool, clock, patience, away: Arc::new(away), back: Arc::new(back), life })
    }

    /// A connection of the pool. At once an error if the database is known to be away.
    pub(crate) async fn get(&self) -> Result<Object, StoreError> {
        if let Some(why) = self.away.borrow().clone() {
            return Err(StoreError::Unavailable(why));
        }
        let asked = Instant::now();
        match self.pool.get().await {
            Ok(object) => Ok(object),
            Err(PoolError::Timeout(TimeoutType::Wait)) => Err(StoreError::Overloaded),
            Err(error) => {
                let (away, error) = (is_away(&error), pool_error(&error));
                if away && !self.pool.is_closed() {
                    self.open_breaker(asked, &error);
                }
                Err(error)
            }
        }
    }

    /// A connection for a transaction.
    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        Ok(Session(Some(self.get().await?)))
    }

    pub(crate) fn close(&self) {
        self.pool.close();
    }

    /// Says in which life of the database this is. A crash ends one, together with all its
    /// connections: what was not yet written to the log is forgotten, and the numbers of
    /// transactions are given away again.
    pub(crate) fn life(&self) -> String {
        self.life.borrow().clone()
    }

    /// The outcome of work that needs the database. None if it took longer than it may, or the
    /// database is found to be away meanwhile.
    pub(crate) async fn within<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut away = self.away.subscribe();
        tokio::select! {
            biased;
            outcome = work => Some(outcome),
            _ = away.wait_for(Option::is_some) => None,
            () = tokio::time::sleep(self.patience) => None,
        }
    }

    /// The outcome of a wait for something else than the database, for as long as that is not found to be away.
    pub(crate) async fn unless_away<T>(&self, wait: impl Future<Output = T>) -> Result<T, StoreError> {
        let away = self.away();
        tokio::select! {
            biased;
            outcome = wait => Ok(outcome),
            why = away.until() => Err(why),
        }
    }

    /// What those ask who would wait in line.
    pub(crate) fn away(&self) -> Away {
        Away::heard(self.away.subscribe())
    }

    /// Refuses callers from now on, until the database answers. Whoever asked before it was back the last time has learnt
    /// nothing of how it is now.
    pub(crate) fn open_breaker(&self, asked: Instant, why: &StoreError) {
        if asked < *self.back.borrow() {
            return;
        }
        let opened = self.away.send_if_modified(|away| {
            let opens = away.is_none();
            if opens {
                *away = Some(why.to_string());
            }
            opens
        });
        if opened {
            tracing::warn!(%why, "the database is away; callers are refused until it is back");
            tokio::spawn(self.clone().knock());
        }
    }

    /// Tries until the database answers, or the store is closed.
    async fn knock(self) {
        while !self.pool.is_closed() {
            tokio::time::sleep(KNOCK_EVERY).await;
            let answer = async { self.pool.get().await.ok()?.simple_query("SELECT 1").await.ok() };
            if let Ok(Some(_)) = tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
                tracing::info!("the database is back");
                break;
            }
        }
        self.back.send_replace(Instant::now());
        self.away.send_replace(None);
    }
}

/// Looks with every new connection whether the database has crashed since the one before: its
/// statistics begin anew then. One that leads to a standby is none: it only reads.
fn learn_life(life: Arc<watch::Sender<String>>) -> Hook {
    Hook::async_fn(move |client, _| {
        let life = life.clone();
        Box::pin(async move {
            let look = "SELECT stats_reset::text, pg_is_in_recovery() FROM pg_stat_bgwriter";
            let asked = client.query_one(look, &[]);
            let slow = |_| HookError::message("the database does not answer");
            let row = tokio::time::timeout(CONNECT_TIMEOUT, asked).await.map_err(slow)?;
            let row = row.map_err(HookError::Backend)?;
            if row.get(1) {
                return Err(HookError::message(STANDBY));
            }
            let now = row.get::<_, Option<String>>(0).unwrap_or_default();
            life.send_if_modified(|known| std::mem::replace(known, now.clone()) != now);
            Ok(())
        })
    })
}

/// A connection that is closed when it is dropped, unless it is given back: whoever leaves in the
/// middle of a transaction must not hand it to the next.
pub(crate) struct Session(Option<Object>);

impl Session {
    pub(crate) fn give_back(mut self) {
        self.keep();
    }

    /// Nothing is left open on it: it goes back to the pool when it is dropped.
    pub(crate) fn keep(&mut self) {
        self.0 = None;
    }
}

impl Deref for Session {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.0.as_ref().expect("it is there until it is given back")
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}

/// Whether this says that the database is away, and not only that it has no room for one more.
fn is_away(error: &PoolError) -> bool {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            error.code().is_none() || is_shutdown(error)
        }
        PoolError::Timeout(TimeoutType::Create) | PoolError::PostCreateHook(HookError::Message(_)) => true,
        _ => false,
    }
}

fn pool_error(error: &PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
            store_error(error)
        }
        PoolError::PostCreateHook(HookError::Message(why)) => StoreError::Unavailable(why.to_string()),
        other => StoreError::Unavailable(other.to_string()),
    }
}

/// Why a standby is no database.
pub(crate) const STANDBY: &str = "the database is a standby and takes no writes";
/// How long a database that is well takes to answer at the very most.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TCP_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a caller waits for a connection of the pool.
const POOL_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two tries while the database is away.
const KNOCK_EVERY: Duration = Duration::from_millis(100);
