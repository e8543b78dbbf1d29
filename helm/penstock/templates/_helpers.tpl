{{/* What all names begin with. A Service's begins with a letter and has no dot, as names of releases may not and may. */}}
{{- define "penstock.name" -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if not (regexMatch "^[a-z]" $release) }}{{ $release = printf "penstock-%s" $release }}{{ end -}}
{{- $release | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}"
{{- end -}}

{{/* The image of a part: list of the root context and the part's name. */}}
{{- define "penstock.image" -}}
{{- $root := index . 0 -}}
{{- $digest := index $root.Values.image.digests (index . 1) -}}
{{ $root.Values.image.repository }}/{{ index . 1 }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end -}}

{{- define "penstock.secretName" -}}
{{ .Values.secrets.existing | default (printf "%s-settings" (include "penstock.name" .)) }}
{{- end -}}

{{/* The Secrets whose keys are settings: the token has one of its own, because it is made here and kept. */}}
{{- define "penstock.secrets" -}}
- secretRef: {name: {{ include "penstock.secretName" . | quote }}}
{{- if not .Values.secrets.existing }}
- secretRef: {name: "{{ include "penstock.name" . }}-token"}
{{- end }}
{{- with .Values.extraEnvFrom }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.brokers" -}}
{{- if .Values.bundled.kafka.enabled -}}
{{- if ne .Values.kafka.securityProtocol "PLAINTEXT" }}
{{- fail (printf "kafka.securityProtocol=%s: the bundled Kafka speaks PLAINTEXT alone; leave it out, or name your own by kafka.brokers" .Values.kafka.securityProtocol) }}
{{- end }}
{{- include "penstock.name" . }}-kafka:9092
{{- else -}}
{{ required "kafka.brokers is missing: name your brokers, or set bundled.kafka.enabled=true for trying out" .Values.kafka.brokers }}
{{- end -}}
{{- end -}}

{{- define "penstock.storeEndpoint" -}}
{{- if .Values.bundled.minio.enabled -}}
http://{{ include "penstock.name" . }}-minio:9000
{{- else -}}
{{ required "store.endpoint is missing: name your S3 store, or set bundled.minio.enabled=true for trying out" .Values.store.endpoint }}
{{- end -}}
{{- end -}}

{{- define "penstock.redisUrl" -}}
{{- if .Values.bundled.redis.enabled -}}
redis://{{ include "penstock.name" . }}-redis:6379/0
{{- else -}}
{{ required "secrets.redisUrl is missing: name your Redis, use secrets.existing, or set bundled.redis.enabled=true for trying out" .Values.secrets.redisUrl }}
{{- end -}}
{{- end -}}

{{- define "penstock.restScheme" -}}
http{{ if .Values.dispatcher.tls.secret }}s{{ end }}
{{- end -}}

{{/* The servers that certificates are mounted for: a list, as YAML. What would be mounted and not used is refused. */}}
{{- define "penstock.tlsServers" -}}
{{- range $server := list "kafka" "redis" "store" }}
{{- with (index $.Values $server).tls }}
{{- if .secret }}
{{- if not (or .ca (get . "certificate")) }}
{{- fail (printf "%s.tls.secret=%s: name what is in it that is wanted, by %s.tls.ca or certificate" $server .secret $server) }}
{{- end }}
- {{ $server }}
{{- else if get . "certificate" }}
{{- fail (printf "%s.tls.certificate=%s: name the Secret that it is in, by %s.tls.secret" $server .certificate $server) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values }}
{{- if and .kafka.tls.secret (not (has .kafka.securityProtocol (list "SSL" "SASL_SSL"))) }}
{{- fail (printf "kafka.tls.secret: kafka.securityProtocol=%s uses no certificates; set SSL or SASL_SSL" .kafka.securityProtocol) }}
{{- end }}
{{- if and .redis.tls.secret (or .bundled.redis.enabled (and .secrets.redisUrl (not (hasPrefix "rediss://" .secrets.redisUrl)))) }}
{{- fail "redis.tls.secret: secrets.redisUrl uses no certificates; write rediss://, which the bundled Redis does not speak" }}
{{- end }}
{{- if and .store.tls.secret (not (hasPrefix "https://" (include "penstock.storeEndpoint" $))) }}
{{- fail "store.tls.secret: store.endpoint uses no certificates; write https://, which the bundled MinIO does not speak" }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The certificates as settings. */}}
{{- define "penstock.tlsEnv" -}}
{{- range $server := include "penstock.tlsServers" . | fromYamlArray }}
{{- with (index $.Values $server).tls }}
{{- $setting := printf "PENSTOCK_%s_SSL" (upper $server) }}
{{- $folder := printf "/etc/penstock/%s" $server }}
{{- if .ca }}
- {name: {{ $setting }}_CAFILE, value: {{ $folder }}/ca.crt}
{{- if and (eq $server "store") $.Values.store.forPipelines }}
- {name: AWS_CA_BUNDLE, value: {{ $folder }}/ca.crt}
{{- end }}
{{- end }}
{{- if get . "certificate" }}
- {name: {{ $setting }}_CERTFILE, value: {{ $folder }}/tls.crt}
- {name: {{ $setting }}_KEYFILE, value: {{ $folder }}/tls.key}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where they lie: what is mounted into every container that has these settings. */}}
{{- define "penstock.tlsMounts" -}}
{{- range include "penstock.tlsServers" . | fromYamlArray }}
- {name: {{ . }}-tls, mountPath: /etc/penstock/{{ . }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "penstock.tlsVolumes" -}}
{{- range $server := include "penstock.tlsServers" . | fromYamlArray }}
{{- with (index $.Values $server).tls }}
- name: {{ $server }}-tls
  secret:
    secretName: {{ .secret | quote }}
    items:
      {{- with .ca }}
      - {key: {{ . | quote }}, path: ca.crt}
      {{- end }}
      {{- if get . "certificate" }}
      - {key: {{ .certificate | quote }}, path: tls.crt}
      - {key: {{ .key | quote }}, path: tls.key}
      {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings of every container that speaks to the cluster. */}}
{{- define "penstock.env" -}}
- {name: PENSTOCK_NAME, value: {{ .Values.clusterName | quote }}}
- {name: PENSTOCK_REST, value: "{{ include "penstock.restScheme" . }}://{{ include "penstock.name" . }}-rest:{{ .Values.dispatcher.service.port }}"}
- {name: PENSTOCK_KAFKA_BROKERS, value: {{ include "penstock.brokers" . | quote }}}
- {name: PENSTOCK_KAFKA_SECURITY_PROTOCOL, value: {{ .Values.kafka.securityProtocol | quote }}}
- {name: PENSTOCK_KAFKA_SASL_MECHANISM, value: {{ .Values.kafka.saslMechanism | quote }}}
- {name: PENSTOCK_KAFKA_REPLICATION, value: {{ .Values.kafka.replication | quote }}}
- {name: PENSTOCK_STORE_ENDPOINT, value: {{ include "penstock.storeEndpoint" . | quote }}}
- {name: PENSTOCK_STORE_BUCKET, value: {{ .Values.store.bucket | quote }}}
- {name: PENSTOCK_STORE_REGION, value: {{ .Values.store.region | quote }}}
{{- if .Values.store.forPipelines }}
- {name: AWS_ENDPOINT_URL, value: {{ include "penstock.storeEndpoint" . | quote }}}
- {name: AWS_REGION, value: {{ .Values.store.region | quote }}}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ include "penstock.secretName" . | quote }}, key: PENSTOCK_STORE_ACCESS_KEY}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ include "penstock.secretName" . | quote }}, key: PENSTOCK_STORE_SECRET_KEY}}
{{- end }}
{{- with include "penstock.tlsEnv" . | trim }}{{ . | nindent 0 }}{{ end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The checks of a service, by HTTP or HTTPS. Ready is who can work; a coordinator that waits for the lease can. */}}
{{- define "penstock.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ . }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- define "penstock.placing" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The class of pods that go before task managers where a node is full; none if there is none. */}}
{{- define "penstock.priority" -}}
{{- if or .Values.priorityClass.existing .Values.priorityClass.create -}}
priorityClassName: {{ .Values.priorityClass.existing | default (include "penstock.priorityClass" .) | quote }}
{{- end -}}
{{- end -}}

{{/* Classes belong to no namespace. */}}
{{- define "penstock.priorityClass" -}}
penstock-{{ .Release.Namespace }}-{{ include "penstock.name" . }}
{{- end -}}

{{/* Who a coordinator is: of its own where it may set the number of task managers, so that nobody else may. */}}
{{- define "penstock.coordinatorAccount" -}}
{{ include "penstock.name" . }}{{ if .Values.taskmanager.autoscaling.enabled }}-coordinator{{ end }}
{{- end -}}

{{/* Who the pipeline service is: of its own where drivers make the pods of executors, which have no such rights. */}}
{{- define "penstock.pipelineAccount" -}}
{{ include "penstock.name" . }}{{ if not .Values.pipeline.master }}-pipeline{{ end }}
{{- end -}}

{{/* Where a coordinator finds the file of application mode. */}}
{{- define "penstock.applicationFile" -}}
{{- $file := required "application.file is missing: the path of the pipeline in the image, or its name in application.configMap" .Values.application.file -}}
{{- if or .Values.application.source .Values.application.configMap -}}
/application/{{ base $file }}
{{- else -}}
{{ $file }}
{{- end -}}
{{- end -}}

{{- define "penstock.applicationConfigMap" -}}
{{- if .Values.application.source -}}
{{ include "penstock.name" . }}-application
{{- else -}}
{{ .Values.application.configMap }}
{{- end -}}
{{- end -}}

{{/* A value as its user wrote it: numbers of a values file come as floats. */}}
{{- define "penstock.text" -}}
{{- if and (kindIs "float64" .) (eq (. | int64 | float64) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* What a coordinator is told: a list, as YAML. */}}
{{- define "penstock.coordinatorArguments" -}}
- --lease-ttl
- {{ .Values.coordinator.leaseTtl | quote }}
- --worker-timeout
- {{ .Values.coordinator.workerTimeout | quote }}
{{- with .Values.taskmanager.autoscaling }}
{{- if .enabled }}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "taskmanager.autoscaling: minReplicas=%d is more than maxReplicas=%d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
- --scale-statefulset
- "{{ include "penstock.name" $ }}-taskmanager"
- --scale-slots
- {{ $.Values.taskmanager.slots | quote }}
- --scale-min
- {{ .minReplicas | quote }}
- --scale-max
- {{ .maxReplicas | quote }}
- --slot-idle-timeout
- {{ .idleTimeout | quote }}
{{- end }}
{{- end }}
{{- with .Values.application }}
{{- if .enabled }}
- --application
- {{ include "penstock.applicationFile" $ | quote }}
- --parallelism
- {{ .parallelism | quote }}
{{- range $name, $value := .params }}
- --param
- {{ printf "%s=%s" $name (include "penstock.text" $value) | quote }}
{{- end }}
{{- with .fromSavepoint }}
- --from-savepoint
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.coordinator.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
A service's pods: dict of root, part, port, values, arguments (a list), grace, tmp; and perhaps account, token (whether
it is mounted), scheme, annotations, env, mounts, volumes, and containers beside and before it (lists).
*/}}
{{- define "penstock.podTemplate" -}}
{{- $root := .root -}}
metadata:
  labels:
    {{- include "penstock.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .part }}
  annotations:
    checksum/settings: {{ print (include (print $root.Template.BasePath "/secret.yaml") $root) $root.Values.secrets.token | sha256sum | quote }}
    {{- with .annotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ .account | default (include "penstock.name" $root) | quote }}
  automountServiceAccountToken: {{ .token | default false }}
  enableServiceLinks: false
  securityContext: {{- include "penstock.podSecurity" $root | nindent 4 }}
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .initContainers }}
  initContainers: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .part }}
      image: {{ include "penstock.image" (list $root .part) | quote }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy | quote }}
      args: {{- toYaml .arguments | nindent 8 }}
      ports:
        - {name: http, containerPort: {{ .port }}}
      env:
        {{- include "penstock.env" $root | nindent 8 }}
        {{- with .env }}{{ toYaml . | nindent 8 }}{{ end }}
      envFrom: {{- include "penstock.secrets" $root | nindent 8 }}
      securityContext: {{- include "penstock.containerSecurity" $root | nindent 8 }}
      {{- include "penstock.probes" (.scheme | default "HTTP") | nindent 6 }}
      resources: {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with include "penstock.tlsMounts" $root | trim }}{{ . | nindent 8 }}{{ end }}
        {{- with .mounts }}{{ toYaml . | nindent 8 }}{{ end }}
    {{- with .containers }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes:
    - name: tmp
      emptyDir: {{- toYaml .tmp | nindent 8 }}
    {{- with include "penstock.tlsVolumes" $root | trim }}{{ . | nindent 4 }}{{ end }}
    {{- with .volumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- include "penstock.placing" .values | nindent 2 }}
  {{- with .values.spreadOver }}
  topologySpreadConstraints:
    {{- range . }}
    - topologyKey: {{ . | quote }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "penstock.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.part }}
      matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
  {{- if has .part (list "coordinator" "dispatcher") }}
  {{- include "penstock.priority" $root | nindent 2 }}
  {{- end }}
{{- end -}}
