//! The call that makes a copy of the data while the broker runs, and reports its progress.

use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use hapax_wire::{Code, proto};
use tokio::sync::mpsc;
use tonic::Status;

use super::status::status;
use crate::engine::{Data, Error};
use crate::problem::Problem;
use crate::service::Service;

/// How far a backup has come.
pub(super) struct Progress(mpsc::Receiver<Result<proto::BackupProgress, Status>>);

impl Stream for Progress {
    type Item = Result<proto::BackupProgress, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Starts a copy to a directory of the broker's machine.
pub(super) fn begin(service: &Service, directory: String) -> Result<Progress, Problem> {
    let target = PathBuf::from(directory);
    if !target.is_absolute() {
        return Err(Problem::invalid("give an absolute path on the broker's machine"));
    }
    // Checked before anything is copied; a directory that does not exist yet is fine.
    let is_taken = std::fs::read_dir(&target).is_ok_and(|mut files| files.next().is_some());
    if is_taken || target.is_file() {
        let detail = "is not empty: give a directory that is empty or does not exist";
        return Err(Problem::invalid(format!("{} {detail}", target.display())));
    }
    let data = service.engine().data().path();
    Data::refuse_target_inside(data, &target).map_err(|error| problem(&error))?;
    Ok(copy(service.clone(), target))
}

fn problem(error: &Error) -> Problem {
    let code = match error {
        Error::Inside { .. } | Error::InDatabase => Code::Invalid,
        _ => Code::Unavailable,
    };
    Problem::new(code, error.to_string())
}

fn copy(service: Service, target: PathBuf) -> Progress {
    let (sender, receiver) = mpsc::channel(16);
    tokio::task::spawn_blocking(move || {
        let mut last = (0, 0);
        let copied = service.engine().backup(&target, &mut |bytes, total_bytes| {
            last = (bytes, total_bytes);
            let progress = proto::BackupProgress { bytes, total_bytes, done: false };
            // A slow reader misses some.
            let _ = sender.try_send(Ok(progress));
        });
        let (bytes, total_bytes) = last;
        let end = match copied {
            Ok(()) => Ok(proto::BackupProgress { bytes, total_bytes, done: true }),
            Err(error) => Err(status(&problem(&error))),
        };
        let _ = sender.blocking_send(end);
    });
    Progress(receiver)
}
