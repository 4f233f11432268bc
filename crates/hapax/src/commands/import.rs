//! `hapax import`: moves a broker on disk into PostgreSQL.

use std::path::{Path, PathBuf};

use clap::Args;
use hapax_server::cluster::import::{Error, Imported, Stage, import};
use hapax_server::engine::Data;
use serde_json::json;

use super::cluster::Store;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::screen::{Output, Screen, count, progress, say};
use crate::settings::is_database;

const BAR: &str = "{msg:9} {bar:40} {bytes}/{total_bytes}, {eta} left";

pub(crate) const HELP: &str = "\
Everything comes along: queues, messages, leases, finished keys with their results, secrets and
tokens. It is read back and compared before a node may use it. The database must have no tables in a
schema hapax, and the broker has to be stopped. An import that was interrupted leaves nothing that a
node would use: run it again, and it begins anew.

Do not start a broker on the directory again: it would accept keys that the database has accepted,
too. With --retire it refuses to.

Examples:
  hapax import hapax-data --store postgres://hapax@db/queues
  hapax import hapax-data --store postgres://hapax@db/queues --retire";

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The data directory of a stopped broker, or a backup. Without --retire it is not changed.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// After the import, rename broker.json in the directory to broker.json.imported, so that no
    /// broker starts there any more. Not for a backup.
    #[arg(long)]
    retire: bool,
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    output: Output,
}

pub(crate) fn run(arguments: &Import) -> Result<Exit, Failure> {
    let Import { directory, retire, store, output } = arguments;
    let store = store.checked()?;
    if is_database(directory) {
        let what = "the directory to import is the address of a database";
        let next = "hapax import DIR --store URL brings a directory into a database";
        return Err(Failure::usage(what).next(next));
    }
    if Data::is_of_node(directory) {
        let what = format!(
            "{} is the directory of a node, whose data is in PostgreSQL already",
            directory.display()
        );
        let next = "name the data directory of a broker on disk, or a backup of it";
        return Err(Failure::usage(what).next(next));
    }
    // Retired, it could not be restored any more.
    if *retire && Data::moving(directory).is_ok_and(|moving| moving.is_copy) {
        let what =
            format!("{} is a backup: --retire is for a broker's own data", { directory.display() });
        let next = "leave out --retire; a backup stays as it is";
        return Err(Failure::usage(what).next(next));
    }
    let bar = progress(0, BAR);
    let imported = import(directory, &store, &mut |stage, done, total| {
        bar.set_message(match stage {
            Stage::Checking => "checking",
            Stage::Copying => "copying",
            Stage::Verifying => "verifying",
        });
        bar.set_length(total.max(done));
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let imported = imported.map_err(|error| failed(directory, &error))?;
    let retired = match retire {
        true => Data::retire(directory).map_err(|error| {
            let what =
                format!("everything was imported, but the directory was not retired: {error}");
            Failure::new(Exit::Failure, what).next(advice(directory))
        }),
        false => Ok(()),
    };
    report(output.screen(), directory, &imported, *retire && retired.is_ok())?;
    retired.map(|()| Exit::Ok)
}

fn report(
    screen: Screen,
    directory: &Path,
    imported: &Imported,
    is_retired: bool,
) -> Result<(), Failure> {
    let Imported { database, partitions, tokens, is_copy } = imported;
    if screen.is_json() {
        let partitions = partitions.iter().map(|it| {
            json!({
                "partition": it.number, "last_batch": it.last, "batches": it.batches,
                "rows": it.rows, "row_bytes": it.row_bytes, "epoch": it.epoch,
            })
        });
        let partitions: Vec<_> = partitions.collect();
        screen.json(&json!({
            "database": database, "verified": true, "partitions": partitions, "tokens": tokens,
            "retired": is_retired,
        }))?;
    } else {
        let rows: u64 = partitions.iter().map(|it| it.rows).sum();
        let batches: u64 = partitions.iter().map(|it| it.batches).sum();
        screen.line(format_args!(
            "{database} holds {}: {}, {} and {}, verified",
            count(partitions.len() as u64, "partition"),
            count(rows, "row"),
            if batches == 1 { "1 batch".to_owned() } else { format!("{batches} batches") },
            count(*tokens as u64, "token"),
        ))?;
    }
    if *is_copy {
        say("it was a copy that no broker had opened: leases of the original are not valid");
    }
    say("start it with that store, and with another directory: hapax serve --store URL --data DIR");
    if is_retired {
        say(format_args!("{} was retired: no broker starts there", directory.display()));
    } else {
        say(advice(directory));
    }
    Ok(())
}

fn advice(directory: &Path) -> String {
    format!(
        "do not start a broker on {} again: it would accept keys a second time. Archive it, or \
         rename broker.json in it to broker.json.imported: it is refused then, with the reason",
        directory.display()
    )
}

fn failed(directory: &Path, error: &Error) -> Failure {
    use hapax_server::engine::Error::NoData;
    let what = format!("{} was not imported: {error}", directory.display());
    let failure = Failure::new(Exit::Failure, what);
    match error {
        Error::InUse(_) => failure.next("stop the broker first"),
        Error::Data(NoData(_)) => {
            failure.next("name the directory that the broker was started with (--data)")
        }
        Error::Source(_) => failure.next("hapax check lists all damage in a directory"),
        error if error.is_taken() => {
            let next = "if this is a second import of the same directory, do not drop anything: to \
                        retire the directory, rename broker.json in it to broker.json.imported";
            Failure { exit: Exit::Usage, ..failure.next(next) }
        }
        error if error.is_unreachable() => Failure { exit: Exit::Unavailable, ..failure },
        Error::Target(_) => Failure { exit: Exit::Usage, ..failure },
        Error::Failed(_) | Error::Left(..) => failure.next("run the import again: it begins anew"),
        _ => failure,
    }
}
