//! The HTTP/JSON door.
//!
//! Every route is in one table, from which the router and the OpenAPI document are made. A handler
//! reads a request ([`input`], [`head`], [`body`]), calls the service, and writes what it said
//! ([`shape`], [`output`]); refusals are problem documents ([`failure`]). What concerns every
//! request alike is in [`dispatch`].

mod body;
mod claims;
mod dispatch;
mod failure;
mod head;
mod input;
mod key;
mod keys;
mod messages;
mod openapi;
mod output;
mod pages;
mod queues;
mod redrives;
mod shape;
mod unread;
mod work;

use axum::Router;
use axum::routing::{delete, get, post, put};
use hapax_wire::json;
use utoipa::OpenApi;

use crate::service::Service;
use openapi::Every;

/// Everything that is served under HTTP.
pub fn router(service: Service) -> Router {
    routes()
        .fallback(pages::lost)
        .method_not_allowed_fallback(pages::misused)
        .layer(axum::middleware::from_fn_with_state(service.clone(), dispatch::dispatch))
        .with_state(service)
}

macro_rules! routes {
    ($($method:ident $path:literal => $module:ident::$handler:ident,)+) => {
        /// Every route: method and path.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)+];

        fn routes() -> Router<Service> {
            Router::new()$(.route($path, $method($module::$handler)))+
        }

        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "Hapax",
                description = "A durable message queue in which every message carries an \
                               idempotency key.",
            ),
            paths($($module::$handler),+),
            components(schemas(json::Problem)),
            modifiers(&Every),
            tags(
                (name = "queues", description = "Named sets of rules for messages"),
                (name = "sending", description = "Under one key an operation is accepted once"),
                (name = "working", description = "Messages under leases"),
                (name = "claims", description = "Keys for callers who do the work themselves"),
                (name = "keys", description = "Looking at keys, and what operators do with them"),
                (name = "broker", description = "The broker about itself"),
            ),
        )]
        struct Document;
    };
}

routes! {
    get "/" => pages::home,
    get "/livez" => pages::livez,
    get "/readyz" => pages::readyz,
    get "/metrics" => pages::metrics,
    get "/errors" => pages::errors,
    get "/errors/{code}" => pages::error,
    get "/v1/openapi.json" => pages::openapi,
    get "/v1/limits" => pages::limits,
    get "/v1/queues" => queues::list,
    put "/v1/queues/{queue}" => queues::put,
    get "/v1/queues/{queue}" => queues::get,
    delete "/v1/queues/{queue}" => queues::delete,
    post "/v1/queues/{queue}/pause" => queues::pause,
    post "/v1/queues/{queue}/resume" => queues::resume,
    post "/v1/queues/{queue}/purge" => queues::purge,
    post "/v1/queues/{queue}/messages" => messages::send,
    get "/v1/queues/{queue}/messages" => messages::browse,
    post "/v1/queues/{queue}/batch" => messages::batch,
    post "/v1/queues/{queue}/receive" => work::receive,
    post "/v1/queues/{queue}/settle" => work::settle,
    post "/v1/queues/{queue}/claims" => claims::post,
    post "/v1/queues/{queue}/redrive" => redrives::post,
    get "/v1/queues/{queue}/redrive/{id}" => redrives::get,
    delete "/v1/queues/{queue}/redrive/{id}" => redrives::cancel,
    get "/v1/queues/{queue}/keys/{key}" => keys::get,
    post "/v1/queues/{queue}/keys/{key}/forget" => keys::forget,
    post "/v1/queues/{queue}/keys/{key}/replay" => keys::replay,
    post "/v1/queues/{queue}/keys/{key}/redrive" => keys::redrive,
    post "/v1/queues/{queue}/keys/{key}/discard" => keys::discard,
    post "/v1/queues/{queue}/keys/{key}/resolve" => keys::resolve,
}
