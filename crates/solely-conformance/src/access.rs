//! Keys and tickets.

use solely_core::access::{Area, Caller, Keys, Scope, new_key, new_ticket};

use crate::World;
use crate::world::secs;

fn scopes() -> Vec<Scope> {
    vec![Scope::write(Area::Reserve), Scope::read(Area::Admin)]
}

/// A key is known by what was shown once, and by nothing else.
pub async fn a_key_is_its_callers(world: World) {
    let (text, key) = new_key("shop".to_owned(), scopes());
    let id = key.id.clone();
    world.store().create_key(key).await.expect("is stored");
    let keys = Keys::new(world.store());
    let caller = keys.caller(&text).await.expect("looks");
    assert_eq!(caller, Some(Caller::Key { id: id.clone(), scopes: scopes() }));
    let cut = &text[..text.len() - 1];
    for wrong in [&format!("{cut}_"), cut, &format!("solely_{id}_"), &id, "", "solely_", "solely__"] {
        assert_eq!(Keys::new(world.store()).caller(wrong).await.expect("looks"), None, "{wrong}");
    }
}

/// A revoked key is nobody's, and is still listed.
pub async fn a_revoked_key_is_nobodys(world: World) {
    let (text, key) = new_key("shop".to_owned(), scopes());
    let id = key.id.clone();
    world.store().create_key(key).await.expect("is stored");
    assert!(world.store().revoke_key(id.clone()).await.expect("revokes"));
    assert!(!world.store().revoke_key(id.clone()).await.expect("revokes"));
    assert!(!world.store().revoke_key("nobody".to_owned()).await.expect("revokes"));
    assert_eq!(Keys::new(world.store()).caller(&text).await.expect("looks"), None);
    let listed = world.store().keys().await.expect("lists");
    assert_eq!((listed.len(), listed[0].id.as_str(), listed[0].revoked_at.is_some()), (1, id.as_str(), true));
}

/// Keys survive a restart.
pub async fn keys_survive_a_restart(mut world: World) {
    let (text, key) = new_key("shop".to_owned(), scopes());
    world.store().create_key(key).await.expect("is stored");
    world.restart().await;
    assert!(Keys::new(world.store()).caller(&text).await.expect("looks").is_some());
}

/// A ticket stands for its caller once.
pub async fn a_ticket_is_used_once(world: World) {
    let caller = Caller::User { user_id: "u1".to_owned() };
    let (text, ticket) = new_ticket(caller.clone());
    let hash = ticket.hash.clone();
    assert_eq!(hash, solely_core::access::hash(&text));
    world.store().create_ticket(ticket).await.expect("is stored");
    assert_eq!(world.store().take_ticket(hash.clone()).await.expect("takes"), Some(caller));
    assert_eq!(world.store().take_ticket(hash).await.expect("takes"), None);
}

/// A ticket ends by time, and is pruned.
pub async fn a_ticket_ends_by_time(world: World) {
    let (_, ticket) = new_ticket(Caller::Anyone);
    let (_, another) = new_ticket(Caller::Anyone);
    let hash = ticket.hash.clone();
    world.store().create_ticket(ticket).await.expect("is stored");
    world.store().create_ticket(another).await.expect("is stored");
    world.advance(secs(61));
    assert_eq!(world.store().take_ticket(hash).await.expect("takes"), None);
    let pruned = world.store().prune(solely_core::store::Retention::default()).await.expect("prunes");
    assert_eq!(pruned.rows, 1);
}
