//! Wake-ups between processes: notes over a few channels.
//!
//! One connection listens to all of them; notes are sent by the connection of the calls, those that
//! are there together. A process hears its own pulse: a second or so without any, and it connects
//! again. Whoever was cut off does what it would have done had it heard everything.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use redis::{Client, Pipeline};
use solely_core::bus::{Bus, Note, Relay as _, Told, WeakBus};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Shared;

/// Connects the bus of this process to those of the others, until it is told to stop.
pub(crate) fn connect(shared: &Arc<Shared>, bus: &Bus, stop: CancellationToken) {
    let told = Arc::new(Told::default());
    bus.relay_to(told.clone());
    let wire =
        Wire { shared: shared.clone(), bus: bus.downgrade(), told, me: Uuid::new_v4().simple().to_string() };
    tokio::spawn(stop.run_until_cancelled_owned(async move { wire.run().await }));
}

struct Wire {
    shared: Arc<Shared>,
    bus: WeakBus,
    told: Arc<Told>,
    /// Says which notes are this process's own.
    me: String,
}

/// Why listening has ended.
struct CutOff(String);

impl Wire {
    async fn run(self) {
        loop {
            let Err(CutOff(why)) = self.serve().await;
            if self.told.up() {
                tracing::debug!(why, "wake-ups by Redis are cut off");
                self.shared.trouble.notify_one();
            }
            self.told.set_up(false);
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
    }

    /// Listens and tells until the connection ends.
    async fn serve(&self) -> Result<std::convert::Infallible, CutOff> {
        let topology = self.shared.topology();
        // In a cluster any server that answers will do.
        let node = topology.nodes.iter().find(|node| node.connection().is_some());
        let server = node.ok_or_else(|| CutOff("there is no connection".to_owned()))?.server.clone();
        let connecting = async {
            let mut listening = Client::open(server.info.clone())?.get_async_pubsub().await?;
            for channel in 0..CHANNELS {
                listening.subscribe(channel_name(channel)).await?;
            }
            Ok::<_, redis::RedisError>(listening)
        };
        let listening = tokio::time::timeout(self.shared.patience.connect, connecting).await;
        let listening = listening
            .map_err(|_| CutOff("it does not answer".to_owned()))?
            .map_err(|error| CutOff(error.to_string()))?;
        let mut heard = listening.into_on_message();
        // Whatever was said before is lost on us.
        if let Some(bus) = self.bus.upgrade() {
            bus.missed();
        }
        self.told.set_up(true);
        let (mut pulse, mut alive) = (tokio::time::interval(PULSE), Instant::now());
        loop {
            tokio::select! {
                message = heard.next() => {
                    let message = message.ok_or_else(|| CutOff("the connection has ended".to_owned()))?;
                    if self.hear(&message.get_payload::<String>().unwrap_or_default()) {
                        alive = Instant::now();
                    }
                }
                () = self.told.some() => {
                    let unsent = self.told.take();
                    self.send(unsent).await?;
                }
                _ = pulse.tick() => {
                    if alive.elapsed() > PULSE_LOST {
                        return Err(CutOff("its own pulse is not heard".to_owned()));
                    }
                    self.send(vec![PULSE_NOTE.to_owned()]).await?;
                }
            }
        }
    }

    /// True for this process's own.
    fn hear(&self, text: &str) -> bool {
        let Some((who, note)) = text.split_once(' ') else { return false };
        if who == self.me {
            return true;
        }
        if let (Some(note), Some(bus)) = (Note::read(note), self.bus.upgrade()) {
            bus.hear(&note);
        }
        false
    }

    /// Sends notes by the first server that takes them, or keeps them for the next connection.
    async fn send(&self, notes: Vec<String>) -> Result<(), CutOff> {
        let mut commands = Pipeline::new();
        for note in &notes {
            commands.cmd("PUBLISH").arg(channel_name(channel_of(note))).arg(format!("{} {note}", self.me));
        }
        let topology = self.shared.topology();
        for node in &topology.nodes {
            let Some(connection) = node.connection() else { continue };
            let answer = connection.ask(&commands, self.shared.patience.command).await;
            if answer.is_ok() {
                return Ok(());
            }
            self.shared.judge(node, &connection, &answer);
        }
        let unsent: Vec<String> = notes.into_iter().filter(|note| note != PULSE_NOTE).collect();
        if !unsent.is_empty() {
            self.told.put_back(unsent);
        }
        Err(CutOff("notes cannot be sent".to_owned()))
    }
}

fn channel_of(note: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    note.hash(&mut hasher);
    hasher.finish() % CHANNELS
}

fn channel_name(channel: u64) -> String {
    format!("solely:bus:{channel}")
}

/// Channels that notes are spread over.
const CHANNELS: u64 = 4;
const RECONNECT_AFTER: Duration = Duration::from_millis(100);
const PULSE: Duration = Duration::from_millis(500);
const PULSE_LOST: Duration = Duration::from_secs(2);
/// Says nothing but that its sender is there.
const PULSE_NOTE: &str = "p";
