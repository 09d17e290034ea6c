//! Wake-ups between processes: NOTIFY, coalesced and outside any transaction.
//!
//! A process gathers what it has to tell and sends what is there as one statement on a
//! connection of its own, at most every [`SPACING`]; the same connection listens. Notifications
//! in the transactions of the work itself would make commits wait for each other. A wake-up that
//! is lost costs latency only: every wait also polls, and whoever was cut off wakes everyone here
//! when it is connected again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use solely_core::bus::{Bus, Note, Told, WeakBus};
use tokio::sync::mpsc;
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, NoTls, Socket};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connection::{ANSWER_TIMEOUT, impatient};
use crate::tls::Tls;

/// Connects the bus of this process to those of the others, until it is told to stop.
pub(crate) fn connect(config: Config, tls: Tls, bus: &Bus, stop: CancellationToken) {
    let mut config = config;
    impatient(&mut config);
    let told = Arc::new(Told::default());
    bus.relay_to(told.clone());
    let wire = Wire { config, tls, bus: bus.downgrade(), told, me: Uuid::new_v4().simple().to_string() };
    tokio::spawn(async move { stop.run_until_cancelled(wire.run()).await });
}

struct Wire {
    config: Config,
    tls: Tls,
    bus: WeakBus,
    told: Arc<Told>,
    /// Says which notifications are this process's own.
    me: String,
}

impl Wire {
    async fn run(self) {
        loop {
            let served = self.serve().await;
            self.told.set_up(false);
            if let Err(error) = served {
                tracing::debug!(%error, "wake-ups between processes are cut off");
            }
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
    }

    /// Listens and tells until the connection ends.
    async fn serve(&self) -> Result<(), Error> {
        // Notes that found no room.
        let missed = Arc::new(AtomicBool::new(false));
        let (client, mut notes) = match &self.tls {
            Tls::Never => {
                let (client, connection) = self.config.connect(NoTls).await?;
                (client, driven(connection, missed.clone()))
            }
            Tls::With(tls) => {
                let (client, connection) = self.config.connect(tls.clone()).await?;
                (client, driven(connection, missed.clone()))
            }
        };
        client.batch_execute("LISTEN solely").await?;
        // Whatever was said before is lost on us.
        if let Some(bus) = self.bus.upgrade() {
            bus.missed();
        }
        self.told.set_up(true);
        loop {
            tokio::select! {
                note = notes.recv() => match note {
                    Some(note) => {
                        self.hear(&note);
                        if missed.swap(false, Ordering::Relaxed) && let Some(bus) = self.bus.upgrade() {
                            bus.missed();
                        }
                    }
                    None => return Ok(()),
                },
                () = self.told.some() => {
                    if !self.tell(&client).await {
                        return Ok(());
                    }
                    tokio::time::sleep(SPACING).await;
                }
            }
        }
    }

    fn hear(&self, text: &str) {
        if let (Some((who, note)), Some(bus)) = (text.split_once(' '), self.bus.upgrade())
            && who != self.me
            && let Some(note) = Note::read(note)
        {
            bus.hear(&note);
        }
    }

    /// False if the connection is of no use any more.
    async fn tell(&self, client: &Client) -> bool {
        let unsent = self.told.take();
        let notes: Vec<String> = unsent.iter().map(|note| format!("{} {note}", self.me)).collect();
        let sql = "SELECT pg_notify('solely', note) FROM unnest($1::text[]) AS note";
        let sent = tokio::time::timeout(ANSWER_TIMEOUT, client.execute(sql, &[&notes])).await;
        if !matches!(sent, Ok(Ok(_))) {
            // They are told by the next connection.
            self.told.put_back(unsent);
        }
        sent.is_ok_and(|sent| sent.is_ok())
    }
}

/// Drives a connection in a task of its own; its notifications.
fn driven<T>(mut connection: Connection<Socket, T>, missed: Arc<AtomicBool>) -> mpsc::Receiver<String>
where
    T: TlsStream + Unpin + Send + 'static,
{
    let (notes, received) = mpsc::channel(NOTES_MAX);
    tokio::spawn(async move {
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(note) = message
                && notes.try_send(note.payload().to_owned()).is_err()
            {
                missed.store(true, Ordering::Relaxed);
            }
        }
    });
    received
}

/// Notifications that wait to be heard.
const NOTES_MAX: usize = 1_024;
/// Between two times of telling.
const SPACING: Duration = Duration::from_millis(5);
const RECONNECT_AFTER: Duration = Duration::from_millis(250);
