//! `hapax cluster`: the nodes of a broker whose data is in a database.

use clap::{Args, Subcommand};
use hapax_server::cluster;
use hapax_server::options::StoreUrl;
use serde_json::json;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, Screen, Table, say};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the nodes, whether they beat, and who owns the partitions. Takes 1.5 s, in which they
    /// are watched.
    #[command(after_help = "Examples:
  hapax cluster status --store postgres://hapax@db/queues")]
    Status(Status),
    /// Go on with what the database has, after it was set back and the nodes halted. Stop all
    /// nodes first. What was acknowledged and is no longer in the database is lost for good.
    #[command(after_help = "Examples:
  hapax cluster accept-loss --store postgres://hapax@db/queues
  hapax cluster accept-loss --store postgres://hapax@db/queues --yes")]
    AcceptLoss(AcceptLoss),
}

#[derive(Args)]
pub(crate) struct Store {
    /// The database of the broker, as its nodes have it. Prefer the variable: other users of this
    /// machine can read arguments.
    #[arg(long = "store", env = "HAPAX_STORE", value_name = "URL", hide_env_values = true)]
    url: String,
}

/// The URL may have a password: nothing that prints a command may print it.
impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Store")
    }
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct AcceptLoss {
    /// Make the change. Without it, only report where the partitions end.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    output: Output,
}

impl Store {
    pub(super) fn checked(&self) -> Result<StoreUrl, Failure> {
        let url = StoreUrl::new(&self.url);
        url.check().map_err(|error| Failure::usage(format!("--store: {error}")))?;
        Ok(url)
    }
}

pub(crate) fn run(command: &Command) -> Result<Exit, Failure> {
    match command {
        Command::Status(arguments) => status(arguments),
        Command::AcceptLoss(arguments) => accept_loss(arguments),
    }
}

fn status(Status { store, output }: &Status) -> Result<Exit, Failure> {
    let status = cluster::status(&store.checked()?).map_err(refused)?;
    if let Some(warning) = &status.warning {
        say(format_args!("warning: {warning}"));
    }
    let screen = output.screen();
    let name_of = |id| {
        let node = status.nodes.iter().find(|(node, _)| Some(node.id) == id);
        node.map(|(node, _)| node.name.clone())
    };
    if screen.is_json() {
        let nodes = status.nodes.iter().map(|(node, beats)| {
            let state = node.state.map(|state| format!("{state:?}").to_lowercase());
            json!({
                "id": node.id.to_string(), "name": node.name, "address": node.address,
                "release": node.release, "state": state, "beats": beats,
            })
        });
        let nodes: Vec<_> = nodes.collect();
        let partitions = status.partitions.iter().map(|it| {
            json!({ "partition": it.partition, "epoch": it.epoch, "owner": name_of(it.owner) })
        });
        let partitions: Vec<_> = partitions.collect();
        let shape = json!({
            "database": status.database, "warning": status.warning, "nodes": nodes,
            "partitions": partitions,
        });
        screen.json(&shape)?;
        return Ok(Exit::Ok);
    }
    screen.line(format_args!("nodes of {}", status.database))?;
    list(screen, &status)?;
    if !status.nodes.is_empty() && status.nodes.iter().all(|(_, beats)| !beats) {
        screen.line(
            "no node beats: either none runs, or the database does not commit, as when it waits \
             for a synchronous standby that is away",
        )?;
    }
    screen.line("")?;
    let mut table = Table::new(&[">partition", ">epoch", "owner"]);
    for partition in &status.partitions {
        let owner = match partition.owner {
            Some(_) => name_of(partition.owner).unwrap_or_else(|| "a node that is gone".to_owned()),
            None => "nobody".to_owned(),
        };
        table.row([partition.partition.into(), partition.epoch.into(), owner.into()]);
    }
    table.print(screen)?;
    Ok(Exit::Ok)
}

/// Lists the nodes. One that was killed and started again left its old row behind, for an hour:
/// that is not shown.
fn list(screen: Screen, status: &cluster::Status) -> Result<(), Failure> {
    let mut table = Table::new(&["node", "state", "beats", "address", "release"]);
    let living = status.nodes.iter().filter(|(_, beats)| *beats);
    let living: Vec<_> = living.map(|(node, _)| (&node.name, &node.address)).collect();
    for (node, beats) in &status.nodes {
        if !beats && living.contains(&(&node.name, &node.address)) {
            continue;
        }
        let state = node.state.map(|state| format!("{state:?}").to_lowercase());
        let state = state.filter(|_| *beats).unwrap_or_else(|| match beats {
            true => "unknown".to_owned(),
            false => "gone".to_owned(),
        });
        let beats = if *beats { "yes" } else { "no" };
        table.row([
            (&node.name).into(),
            state.into(),
            beats.into(),
            (&node.address).into(),
            (&node.release).into(),
        ]);
    }
    table.print(screen)?;
    Ok(())
}

fn accept_loss(AcceptLoss { yes, store, output }: &AcceptLoss) -> Result<Exit, Failure> {
    let store = store.checked()?;
    let status = cluster::status(&store).map_err(refused)?;
    if let Some((node, _)) = status.nodes.iter().find(|(_, beats)| *beats) {
        let what = format!("the node {} is running", node.name);
        return Err(Failure::new(Exit::Failure, what).next("stop all nodes first"));
    }
    let screen = output.screen();
    let (database, ends) = cluster::ends(&store).map_err(refused)?;
    let was_accepted = ends.ends.iter().any(|end| end.is_loss_accepted());
    let accepted = match yes {
        true => Some(cluster::accept_loss(&store).map_err(refused)?),
        false => None,
    };
    if screen.is_json() {
        let ends = ends.ends.iter().map(|end| {
            json!({
                "partition": end.partition, "epoch": end.last.epoch,
                "batch": end.last.sequence, "chain": format!("{:016x}", end.last.chain),
            })
        });
        let ends: Vec<_> = ends.collect();
        let is_accepted = accepted.is_some() || was_accepted;
        screen.json(&json!({ "database": database, "ends": ends, "accepted": is_accepted }))?;
        return Ok(Exit::Ok);
    }
    for end in ends.ends {
        let (partition, last) = (end.partition, end.last);
        screen.line(format_args!("in {database} partition {partition} ends at {last}"))?;
    }
    match accepted {
        Some(database) => screen
            .line(format_args!("the loss is accepted in {database}: start the nodes again"))?,
        None if was_accepted => screen.line(
            "a loss was accepted here, and no node has gone on since: start the nodes. If they \
             halt again, repeat with --yes",
        )?,
        None => screen.line(
            "nothing was changed yet. Compare with what the halted nodes report: if one of them \
             was further, what was acknowledged after these positions is lost, and to go on \
             without it, repeat with --yes. If none was, there is nothing to accept",
        )?,
    }
    Ok(Exit::Ok)
}

fn refused(error: hapax_server::Error) -> Failure {
    Failure::new(Exit::Failure, error.to_string())
}
