//! Notes: plain keys that others read.

use async_trait::async_trait;
use futures::future::join_all;
use redis::{FromRedisValue as _, Pipeline};
use solely_core::clock::millis;
use solely_core::companion::{Note, Notes};

use crate::cache::by_node;
use crate::{Redis, Shared};

#[async_trait]
impl Notes for Redis {
    async fn note(&self, notes: Vec<Note>) {
        let (shared, topology) = (&self.shared, self.shared.topology());
        let names: Vec<String> = notes.iter().map(|note| note.name().to_owned()).collect();
        let writes = by_node(&topology, &names).into_iter().map(|(place, members)| {
            let (node, notes) = (topology.nodes[place].clone(), &notes);
            async move {
                let connection = node.connection().filter(|_| node.is_ours())?;
                let mut commands = Pipeline::new();
                for member in members {
                    write(&mut commands, &notes[member]);
                }
                shared.ask_once(&node, &connection, &commands).await.ok()
            }
        });
        join_all(writes).await;
    }

    async fn noted(&self, names: &[String]) -> Vec<Option<String>> {
        let (shared, topology) = (&self.shared, self.shared.topology());
        let mut found = vec![None; names.len()];
        for (place, members) in by_node(&topology, names) {
            for (member, text) in read(shared, &topology.nodes[place], names, members).await {
                found[member] = text;
            }
        }
        found
    }
}

async fn read(
    shared: &Shared,
    node: &crate::node::Node,
    names: &[String],
    members: Vec<usize>,
) -> Vec<(usize, Option<String>)> {
    let Some(connection) = node.connection().filter(|_| node.is_ours()) else { return Vec::new() };
    let mut commands = Pipeline::new();
    for member in &members {
        commands.cmd("GET").arg(&names[*member]);
    }
    let answers = shared.ask_once(node, &connection, &commands).await.unwrap_or_default();
    let texts = answers.into_iter().map(|answer| Option::<String>::from_redis_value(answer).ok().flatten());
    members.into_iter().zip(texts).collect()
}

fn write(commands: &mut Pipeline, note: &Note) {
    match note {
        Note::Set { name, value, ttl } => {
            commands.cmd("SET").arg(name).arg(value).arg("PX").arg(millis(*ttl).max(1));
        }
        Note::Add { name, member, ttl } => {
            commands.cmd("SADD").arg(name).arg(member);
            commands.cmd("PEXPIRE").arg(name).arg(millis(*ttl).max(1));
        }
        Note::Remove { name, member } => {
            commands.cmd("SREM").arg(name).arg(member);
        }
        Note::Delete { name } => {
            commands.cmd("UNLINK").arg(name);
        }
    }
}
