//! The HTTP/JSON API. Every route is in one table, from which the router and the OpenAPI document
//! are made. The table also defines who may call a route ([`access`]) and what it accepts
//! ([`takes`]), checked in this order. A handler reads a request ([`input`], [`head`], [`body`]),
//! calls the service, and writes the answer ([`shape`], [`output`]); refusals are problem documents
//! ([`failure`]). Everything that is common to all requests is in [`dispatch`].

mod access;
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
mod takes;
mod work;

use axum::Router;
use axum::routing::{delete, get, post, put};
use hapax_wire as wire;
use http::Method;
use utoipa::OpenApi;

use crate::service::Service;
use access::Access;
pub(crate) use dispatch::generated;
pub(super) use failure::{refused, refused_by_a_standby};
use openapi::Every;
pub(super) use pages::metrics_of_a_standby;
use takes::Takes;

/// Everything that is served under HTTP.
pub fn router(service: Service) -> Router {
    routes()
        .fallback(pages::lost)
        .method_not_allowed_fallback(pages::misused)
        .layer(axum::middleware::from_fn_with_state(service.clone(), dispatch::dispatch))
        .with_state(service)
}

/// What a node that does not serve answers all the same.
pub(super) fn pages_of_a_standby() -> Router {
    Router::new()
        .route("/livez", get(pages::livez))
        .route("/errors", get(pages::errors))
        .route("/errors/{code}", get(pages::error))
}

/// A route: who may call it, and what it accepts.
#[derive(Clone, Copy, Debug)]
struct Route {
    method: &'static str,
    path: &'static str,
    access: Access,
    takes: Takes,
}

impl Route {
    /// The route of a request; `None` if there is none.
    fn of(method: &Method, path: &str) -> Option<&'static Self> {
        // A HEAD is answered by the handler of GET.
        let method = if method == Method::HEAD { "get" } else { method.as_str() };
        let is_it = |it: &&Self| it.path == path && it.method.eq_ignore_ascii_case(method);
        TABLE.iter().find(is_it)
    }
}

macro_rules! routes {
    ($(
        $method:ident $path:literal => $module:ident::$handler:ident, $access:ident, $takes:ident;
    )+) => {
        /// Every route: method and path.
        pub const ROUTES: &[(&str, &str)] = &[$((stringify!($method), $path),)+];

        const TABLE: &[Route] = &[$(Route {
            method: stringify!($method),
            path: $path,
            access: Access::$access,
            takes: Takes::$takes,
        },)+];

        fn routes() -> Router<Service> {
            Router::new()$(.route($path, $method($module::$handler)))+
        }

        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "Hapax",
                description = "A durable message queue in which every message has an idempotency \
                               key.",
            ),
            paths($($module::$handler),+),
            components(schemas(wire::Document)),
            modifiers(&Every),
            tags(
                (name = "queues", description = "Queues and their configuration"),
                (name = "sending", description = "Send and list messages. Under one key an \
                                                  operation is accepted once"),
                (name = "working", description = "Receive and settle messages"),
                (name = "claims", description = "Claim keys, for callers that do the work \
                                                 themselves"),
                (name = "keys", description = "Show keys, and operator commands on them"),
                (name = "broker", description = "Health, limits and metrics of the broker"),
            ),
        )]
        struct Document;
    };
}

routes! {
    get "/" => pages::home, Open, NOTHING;
    get "/livez" => pages::livez, Open, NOTHING;
    get "/readyz" => pages::readyz, Open, NOTHING;
    get "/metrics" => pages::metrics, Near, NOTHING;
    get "/errors" => pages::errors, Open, NOTHING;
    get "/errors/{code}" => pages::error, Open, NOTHING;
    get "/v1/openapi.json" => pages::openapi, Open, NOTHING;
    get "/v1/limits" => pages::limits, Open, NOTHING;
    get "/v1/queues" => queues::list, Token, NOTHING;
    put "/v1/queues/{queue}" => queues::put, Token, CONFIG;
    get "/v1/queues/{queue}" => queues::get, Token, NOTHING;
    delete "/v1/queues/{queue}" => queues::delete, Token, IF_MATCH;
    post "/v1/queues/{queue}/pause" => queues::pause, Token, NOTHING;
    post "/v1/queues/{queue}/resume" => queues::resume, Token, NOTHING;
    post "/v1/queues/{queue}/purge" => queues::purge, Token, BODY;
    post "/v1/queues/{queue}/messages" => messages::send, Token, MESSAGE;
    get "/v1/queues/{queue}/messages" => messages::browse, Token, PAGE;
    post "/v1/queues/{queue}/batch" => messages::batch, Token, BATCH;
    post "/v1/queues/{queue}/receive" => work::receive, Token, RECEIVE;
    post "/v1/queues/{queue}/settle" => work::settle, Token, BODY;
    post "/v1/queues/{queue}/claims" => claims::post, Token, CLAIM;
    post "/v1/queues/{queue}/redrive" => redrives::post, Token, REDRIVE;
    get "/v1/queues/{queue}/redrive/{id}" => redrives::get, Token, NOTHING;
    delete "/v1/queues/{queue}/redrive/{id}" => redrives::cancel, Token, NOTHING;
    get "/v1/queues/{queue}/keys/{key}" => keys::get, Token, LOOK;
    post "/v1/queues/{queue}/keys/{key}/forget" => keys::forget, Token, KEY;
    post "/v1/queues/{queue}/keys/{key}/replay" => keys::replay, Token, REPLAY;
    post "/v1/queues/{queue}/keys/{key}/redrive" => keys::redrive, Token, KEY;
    post "/v1/queues/{queue}/keys/{key}/discard" => keys::discard, Token, KEY;
    post "/v1/queues/{queue}/keys/{key}/resolve" => keys::resolve, Token, RESOLVE;
}
