//! The rules, by their numbers.

mod support;

use std::sync::Arc;

use hapax_core::*;
use support::World;

fn orders() -> QueueName {
    QueueName::new("default", "orders").unwrap()
}

fn send(key: &str, body: &str) -> Command {
    let content = Content::builder(key).build(body.as_bytes()).unwrap();
    Command::Send(Send::new(orders(), content))
}

fn receive(max: u32) -> Command {
    Command::Receive(Receive {
        queue: orders(),
        max,
        lease_ms: None,
        worker: Arc::from("w"),
        receive_id: None,
        several_per_group: false,
    })
}

#[test]
fn a_whole_life_survives_crashes_and_checkpoints() {
    let mut world = World::new();
    let configure = Configure { queue: orders(), config: Config::default(), if_version: None };
    world.run(Command::Configure(configure));
    let Outcome::Sent(Answer::Accepted { id, .. }) = world.run(send("k", "b")) else { panic!() };
    world.crash();
    world.checkpoint();
    assert_eq!(world.evict(), 0);
    let Outcome::Sent(Answer::InFlight(flight)) = world.run(send("k", "b")) else { panic!() };
    assert_eq!(flight.id, id);
    world.crash();
    let Outcome::Received(deliveries) = world.run(receive(10)) else { panic!() };
    assert_eq!(deliveries.len(), 1);
    world.crash();
    let verb = Verb::Done { result: None, emits: Vec::new() };
    let lease = deliveries[0].lease;
    let settled = world.run(Command::Settle(Settle { lease, verb: verb.clone() }));
    assert_eq!(settled, Outcome::Settled(Settled::Ok { place: Place::Done, deadline: None }));
    world.checkpoint();
    world.crash();
    let again = world.run(Command::Settle(Settle { lease, verb }));
    assert_eq!(again, settled);
    let Outcome::Sent(Answer::Done(done)) = world.run(send("k", "b")) else { panic!() };
    assert_eq!(done.id, id);
    let Outcome::Sent(Answer::Conflict { differs, .. }) = world.run(send("k", "other")) else {
        panic!()
    };
    assert_eq!(differs, [Differs::Body]);
}
