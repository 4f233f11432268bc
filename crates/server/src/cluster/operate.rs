//! What operators see and do without a node: straight from the database.

use std::time::Duration;

use hapax_postgres::call::{Answer, Call, Ends};
use hapax_postgres::{Database, Failure, NodeRow, OwnerRow};

use crate::auth::SharedTokens;
use crate::broker::Error;
use crate::options::StoreUrl;

/// How long a statement may take.
const WITHIN: Duration = Duration::from_secs(10);
/// A node that lives beats at least once in this time.
const WATCH: Duration = Duration::from_millis(1_500);

/// The nodes and partitions of a broker.
#[derive(Clone, Debug)]
pub struct Status {
    /// Host and name of the database that answered.
    pub database: String,
    /// Why nodes do not use it as it is set, or what may be lost with it.
    pub warning: Option<String>,
    /// Each node, and whether it beat while it was watched.
    pub nodes: Vec<(NodeRow, bool)>,
    pub partitions: Vec<OwnerRow>,
}

/// Reads the nodes, watches them for a moment, and reads them again. Blocks.
pub fn status(store: &StoreUrl) -> Result<Status, Error> {
    let database = Database::look(store.settings()?)?;
    let warning = database.warning().map(ToString::to_string);
    let before = read(&database)?;
    std::thread::sleep(WATCH);
    let after = read(&database)?;
    let nodes = after.nodes.into_iter().map(|node| {
        let has_beaten =
            before.nodes.iter().all(|it| it.id != node.id || it.heartbeat != node.heartbeat);
        (node, has_beaten)
    });
    let (database, nodes) = (database.answered(), nodes.collect());
    Ok(Status { database, warning, nodes, partitions: after.partitions })
}

/// How far each partition is, in the database that is returned beside it. Blocks.
pub fn ends(store: &StoreUrl) -> Result<(String, Ends), Error> {
    let database = Database::connect(store.settings()?, None)?;
    let ends = database.ends(WITHIN)?;
    Ok((database.answered(), ends))
}

/// Goes on with what the database has after it was set back. Returns which one it is. Blocks.
pub fn accept_loss(store: &StoreUrl) -> Result<String, Error> {
    let database = Database::connect(store.settings()?, None)?;
    database.accept_loss(WITHIN)?;
    Ok(database.answered())
}

/// The tokens of the broker in a database. Blocks.
pub fn tokens(store: &StoreUrl) -> Result<SharedTokens, Error> {
    Ok(SharedTokens::new(Database::connect(store.settings()?, None)?))
}

fn read(database: &Database) -> Result<hapax_postgres::Seen, Failure> {
    match database.call_within(Call::Members, WITHIN)? {
        Answer::Seen(seen) => Ok(seen),
        other => Err(Failure::Refused(format!("it answered {other:?}"))),
    }
}
