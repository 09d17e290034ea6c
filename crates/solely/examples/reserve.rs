//! A box is held, paid and collected, all in this process: `cargo run -p solely --example reserve`.

use std::time::Duration;

use solely::reserve::window::Window;
use solely::reserve::{
    BoxType, Merchant, NewInventory, NewReservation, Operation, Request, Reservation, Reserve, Verdict,
    pickup_code,
};
use solely::{Clock, ReservationId, Solely};

/// Asks, and fails if there is no verdict.
async fn ask(reserve: &Reserve, operation: Operation) -> Result<Verdict, String> {
    let decided = reserve.decide(Request::new(operation)).await;
    Ok(decided.map_err(|error| format!("{error:?}"))?.verdict)
}

/// A box for somebody.
fn hold(user: &str) -> Operation {
    Operation::Reserve(NewReservation {
        id: ReservationId::new(),
        pickup_code: pickup_code(),
        user_id: user.to_owned(),
        inventory_id: "tonight".to_owned(),
        ttl: None,
        quantity: 1,
        max_price: None,
    })
}

fn reservation(verdict: Verdict) -> Result<Reservation, String> {
    match verdict {
        Verdict::Reservation(reservation) => Ok(reservation),
        other => Err(format!("{other:?}")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let solely = Solely::open("sqlite::memory:").await?;
    let running = solely.start();
    let reserve = solely.reserve();
    let id = |id: &str| id.to_owned();
    let bakery = Merchant { id: id("bakery"), name: id("Bakery"), timezone: id("Europe/Berlin") };
    ask(reserve, Operation::CreateMerchant(bakery)).await?;
    let evening = BoxType { id: id("evening"), merchant_id: id("bakery"), name: id("Evening box") };
    ask(reserve, Operation::CreateBoxType(evening)).await?;
    let now = Clock::system().now();
    let tonight = NewInventory {
        id: id("tonight"),
        box_type_id: id("evening"),
        quantity: 1,
        price: 450,
        currency: id("EUR"),
        window: Window::Instants { start: now, end: now.plus(Duration::from_secs(3_600)) },
        pricing: None,
    };
    ask(reserve, Operation::CreateInventory(tonight)).await?;

    let held = reservation(ask(reserve, hold("alice")).await?)?;
    println!("alice: {:?}, payment {:?}", held.status, held.payment_status);
    println!("bob: {:?}", ask(reserve, hold("bob")).await?);
    let paid = reservation(ask(reserve, Operation::Confirm(held.id)).await?)?;
    println!("alice: {:?}, payment {:?}", paid.status, paid.payment_status);
    let wrong = Operation::Collect { id: held.id, code: id("0000-0000") };
    println!("somebody with another code: {:?}", ask(reserve, wrong).await?);
    let right = Operation::Collect { id: held.id, code: held.pickup_code.clone() };
    println!("alice: {:?}", reservation(ask(reserve, right).await?)?.status);
    running.shutdown().await;
    Ok(())
}
